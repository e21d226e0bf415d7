"""A follower's place is kept by the database, listed, and dropped."""

import json
import re
import signal

from tests.cli.output import lines

import kolk
from kolk.server.run import Server


def pages_of(text):
    return [one["page"] for one in lines(text)]


def test_tail_goes_on_where_the_follower_stopped(ok, pages):
    assert pages_of(ok("tail", pages, "--follower", "etl")) == ["/", "/about"]
    assert ok("tail", pages, "--follower", "etl") == ""
    ok("put", pages, "-i", "csv", input="page,pv,title\n/new,1,\n")

    assert pages_of(ok("tail", pages, "--follower", "etl")) == ["/new"]
    assert pages_of(ok("tail", pages, "--follower", "late", "--from", "latest")) == []


def test_an_interrupted_follower_has_committed_what_it_was_done_with(ok, pages, start, folder):
    with Server.open(folder, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)) as server:
        process = start("tail", pages, "--follower", "etl", "--follow", "--url", server.url)
        shown = [json.loads(process.stdout.readline())["page"] for _ in range(2)]
        with kolk.connect(server.url) as db:
            db.table(pages).put({"page": "/new", "pv": 1, "title": None})
        shown.append(json.loads(process.stdout.readline())["page"])  # so it is done with the others

        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)

    assert shown == ["/", "/about", "/new"]
    assert process.returncode == 130
    assert "go on with --follower etl" in said
    assert pages_of(ok("tail", pages, "--follower", "etl")) in ([], ["/new"])


def test_followers_are_listed_and_dropped(ok, run, pages):
    ok("tail", pages, "--follower", "etl")

    (listed,) = lines(ok("follower", "list"))
    assert (listed["table"], listed["follower"], listed["state"], listed["lag"]) == (pages, "etl", "live", 0)
    assert listed["offsets"] == ["0:2"]

    ok("follower", "drop", pages, "etl")
    assert ok("follower", "list") == ""
    gone = run("follower", "drop", pages, "etl")
    assert (gone.exit_code, "no follower 'etl'" in gone.stderr) == (3, True)
    assert "there are no followers" in run("follower", "list", "-f", "table").stderr


def test_a_list_tells_people_when_a_follower_was_here_and_when_it_expires(ok, pages):
    ok("tail", pages, "--follower", "etl")

    shown = ok("follower", "list", "-f", "table", env={"COLUMNS": "80"})

    assert re.search(r" \d+ s ago +in \d+ d ", shown)
    assert "…" not in shown


def test_a_start_for_a_follower_that_exists_is_refused(ok, run, pages):
    ok("tail", pages, "--follower", "etl")

    again = run("tail", pages, "--follower", "etl", "--from", "earliest")
    counted = run("tail", pages, "--follower", "etl", "-n", "1")

    assert (again.exit_code, "leave start out" in again.stderr) == (1, True)
    assert (counted.exit_code, "whole batches" in counted.stderr) == (2, True)
