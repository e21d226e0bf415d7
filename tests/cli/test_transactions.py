"""Transactions as people see them: what is staged, what was committed, what a doctor finds, how to have the room."""

import json

import pytest
from tests.cli.output import lines

import kolk
from kolk.model.grant import Grant
from kolk.runtime.clock import SystemClock
from kolk.runtime.rng import Rng
from kolk.server.run import Server
from kolk.server.tokens import Tokens


@pytest.fixture
def table(db):
    return db.table("web.pages")


def staged(table, app, version=1):
    tx = table.transaction(app, version)
    tx.put({"page": "/new", "pv": 1, "title": None})
    return tx


def test_what_is_staged_and_what_was_committed_is_listed(run, ok, table):
    none = run("tx", "list", "-f", "table")
    with table.transaction("nightly", 7) as tx:
        tx.put({"page": "/", "pv": 5, "title": None})
    staged(table, "hourly")

    hourly, nightly = lines(ok("tx", "list"))
    shown = ok("tx", "list", "-f", "table")

    assert "table.transaction" in none.stderr
    assert (nightly["version"], nightly["state"], nightly["tables"], nightly["rows"]) == (7, "done", ["web.pages"], 1)
    assert nightly["committed"].endswith("Z")
    assert (hourly["state"], len(hourly["handles"]), hourly["committed"]) == ("staging", 1, None)
    assert "nightly" in shown
    assert " ago" in shown
    assert [one["app"] for one in lines(ok("tx", "list", "--app", "nightly"))] == ["nightly"]


def test_what_is_staged_is_discarded_by_its_handle_or_by_its_application(run, ok, db, table):
    staged(table, "a")
    staged(table, "a", 2)
    staged(table, "b")
    handle = next(one.handles[0] for one in db.transactions() if one.app == "b")

    one = run("tx", "discard", handle[:12])
    two = run("tx", "discard", "--app", "a")

    assert (one.exit_code, "discarded 1 handle of b" in one.stderr) == (0, True)
    assert (two.exit_code, "discarded 2 handles of a" in two.stderr) == (0, True)
    assert db.transactions() == []
    for words in (["--app", "a"], [handle], ["0" * 32]):
        gone = run("tx", "discard", *words)
        assert (gone.exit_code, "kolk tx list" in gone.stderr) == (3, True)
    assert run("tx", "discard").exit_code == 2
    assert run("tx", "discard", handle, "--app", "a").exit_code == 2


def test_what_is_somebody_elses_takes_the_right_to_alter(run, folder, pages):
    tokens = Tokens(folder / "tokens.json", SystemClock(), Rng())
    secret = {
        name: tokens.create(name, [Grant.parse(f"web.*={grant}")])[1]
        for name, grant in {"etl": "write", "other": "write", "operator": "alter"}.items()
    }
    config = kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)
    with Server.open(folder, config) as server, kolk.connect(server.url, token=secret["etl"]) as db:
        staged(db.table("web.pages"), "nightly")
        asked = {name: {"KOLK_URL": server.url, "KOLK_TOKEN": secret[name]} for name in secret}

        denied = run("tx", "discard", "--app", "nightly", env=asked["other"])
        done = run("tx", "discard", "--app", "nightly", env=asked["operator"])

    assert (denied.exit_code, "of etl" in denied.stderr) == (4, True)
    assert done.exit_code == 0


def test_a_status_tells_what_waits_and_what_became_of_commits(ok, table):
    with table.transaction("nightly", 1) as tx:
        tx.put({"page": "/", "pv": 5, "title": None})
    staged(table, "hourly")

    found = json.loads(ok("status", "-f", "json"))["transactions"]
    shown = ok("status", "-f", "table")

    assert (found["committed"], found["handles"], found["pending"]) == (1, 1, 0)
    assert "staged under 1 handle, 1 app\n" in shown


def test_a_doctor_finds_commits_that_cannot_be_finished(run, db, table, monkeypatch):
    well = {one["check"]: one for one in lines(run("doctor").stdout)}
    monkeypatch.setattr(type(db), "transactions", lambda db: [stuck()])
    ill = run("doctor")

    assert well["transactions"]["state"] == "ok"
    found = {one["check"]: one for one in lines(ill.stdout)}["transactions"]
    assert (ill.exit_code, found["state"]) == (1, "fail")
    assert "version 7 of nightly (no space)" in found["found"]


def stuck():
    return kolk.TransactionInfo(
        app="nightly", version=7, tables=("web.pages",), state="pending", rows=1, timestamp_ms=1, problem="no space"
    )
