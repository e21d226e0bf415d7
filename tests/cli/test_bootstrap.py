"""``kolk tail --bootstrap``: the whole table first, and then every change after it."""

import json
import signal

import pyarrow as pa
import pytest
from tests.cli.output import lines

import kolk
from kolk.server.run import Server


def kinds(text):
    return [(one["_change_type"], one["page"], one["pv"]) for one in lines(text)]


@pytest.fixture
def history(ok, pages):
    """A table that was changed since its rows were put: one is updated, one is gone."""
    ok("put", pages, "-i", "csv", input="page,pv,title\n/gone,1,\n")
    ok("put", pages, "-i", "csv", "--columns", "pv", input="page,pv\n/,2\n")
    ok("put", pages, "-i", "csv", "--delete", input="page\n/gone\n")
    return pages


@pytest.fixture
def server(folder, history):
    with Server.open(folder, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)) as running:
        yield running


ROWS = [("+I", "/", 2), ("+I", "/about", 7)]


def test_the_rows_come_as_they_are_and_not_as_they_became(ok, history):
    assert kinds(ok("tail", history, "--bootstrap")) == ROWS


def test_rows_and_changes_have_one_schema_in_every_format(run, start, server, history):
    process = start("tail", history, "--bootstrap", "--follow", "-f", "arrow", "--url", server.url, text=False)
    with kolk.connect(server.url) as db, pa.ipc.open_stream(process.stdout) as stream:
        first = stream.read_next_batch()
        db.table(history).put({"page": "/new", "pv": 1, "title": None})
        second = stream.read_next_batch()
    process.send_signal(signal.SIGINT)
    process.wait(30)

    assert first["page"].to_pylist() == ["/", "/about"]
    assert (second["_change_type"].to_pylist(), second["page"].to_pylist()) == (["+I"], ["/new"])


def test_what_comes_after_the_rows_follows_until_ctrl_c_which_tells_the_place(start, ok, server, history, folder):
    process = start("tail", history, "--bootstrap", "--follow", "--url", server.url)
    rows = [process.stdout.readline() for _ in ROWS]
    with kolk.connect(server.url) as db:
        db.table(history).delete(["/"])
    deleted = process.stdout.readline()

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert kinds("".join(rows)) == ROWS
    assert kinds(deleted) == [("-D", "/", 2)]
    assert process.returncode == 130
    # Between the write and the note of it there is a moment, in which the interruption counts it as not written.
    assert err in [f"""stopped at {place}; go on with --from '{place}'\n""" for place in ('{"0":7}', '{"0":6}')]


def test_with_a_follower_the_rows_come_once(ok, history):
    first = ok("tail", history, "--bootstrap", "--follower", "etl")
    ok("put", history, "-i", "csv", "--columns", "pv", input="page,pv\n/about,8\n")

    second = ok("tail", history, "--bootstrap", "--follower", "etl")

    assert kinds(first) == ROWS
    assert kinds(second) == [("-U", "/about", 7), ("+U", "/about", 8)]
    assert ok("tail", history, "--bootstrap", "--follower", "etl") == ""


def test_partitions_are_chosen_and_told_of_after_the_rows(ok, start, folder):
    ok("table", "create", "hits", "--columns", "day int, id int", "-k", "day,id", "--partition-by", "day")
    ok("put", "hits", "-i", "csv", input="day,id\n1,1\n2,1\n3,1\n")

    chosen = lines(ok("tail", "hits", "--bootstrap", "--where", "day >= 2"))
    with Server.open(folder, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)) as server:
        process = start("tail", "hits", "--bootstrap", "--follow", "--url", server.url)
        rows = [json.loads(process.stdout.readline())["day"] for _ in range(3)]
        with kolk.connect(server.url) as db:
            db.table("hits").drop_partition(day=2)
            told = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

    assert sorted(one["day"] for one in chosen) == [2, 3]
    assert sorted(rows) == [1, 2, 3]
    assert (told["partition"], told["event"], told["unread"]) == ("day=2", "dropped", 0)
    assert '"day=1/0":1' in err


@pytest.mark.parametrize("options", [["--from", "earliest"], ["-n", "3"], ["--bucket", "0"]])
def test_a_part_of_the_table_is_refused(run, history, options):
    done = run("tail", history, "--bootstrap", *options)

    assert (done.exit_code, "the whole table" in done.stderr) == (2, True)


@pytest.mark.parametrize("options", [[], ["--follower", "etl"]])
def test_a_log_table_is_all_changes(run, ok, options):
    ok("table", "create", "events", "--columns", "what string")

    done = run("tail", "events", "--bootstrap", *options)

    assert (done.exit_code, "--from earliest" in done.stderr) == (1, True)


def test_ctrl_c_before_all_rows_were_written_tells_no_place(start, ok, pages):
    ok("put", pages, "-i", "csv", input="page\n" + "".join(f"{n:0100}\n" for n in range(20_000)))
    process = start("tail", pages, "--bootstrap")
    process.stdout.readline()  # the others fill the pipe, and wait

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert err == "stopped before all rows were there; begin again\n"
