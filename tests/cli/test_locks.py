"""Owners of columns as people see them: whose the columns are, what releasing one asks, takes back and forgets."""

import json

import pytest

import kolk
from kolk.errors import Fenced


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def db(folder, pages):
    """The folder of the commands, in this process: so they see who writes."""
    with kolk.connect(folder) as database:
        yield database


@pytest.fixture
def table(db):
    return db.table("web.pages")


def begun(table, owner="hourly", columns=("pv",), **options):
    """An owner that has committed one epoch and goes on."""
    writer = table.writer(owner=owner, columns=columns, **options)
    writer.put({"page": "/", "pv": 5})
    writer.commit()
    writer.put({"page": "/", "pv": 6})
    return writer


def test_the_owners_of_columns_are_listed(run, ok, db, table):
    none = run("lock", "list", "-f", "table")
    db.create_table("other", kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "int")], "k"))
    begun(table)
    db.table("other").writer(owner="all of it")

    other, hourly = lines(ok("lock", "list"))
    shown = ok("lock", "list", "-f", "table")

    assert "table.writer" in none.stderr
    assert (hourly["table"], hourly["owner"], hourly["columns"]) == ("web.pages", "hourly", ["pv"])
    assert (hourly["state"], hourly["epoch"], hourly["uncommitted"], hourly["fence"]) == ("live", 0, True, 1)
    assert 0 < hourly["seconds_left"] <= 60
    assert (other["columns"], other["epoch"], other["undo"]) == (None, None, "always")
    assert "hourly" in shown
    assert "in 5" in shown
    assert [one["owner"] for one in lines(ok("lock", "list", "--table", "web.pages"))] == ["hourly"]
    assert run("lock", "list", "--table", "nowhere").exit_code == 3


def test_whether_there_is_anything_uncommitted_is_blank_where_nobody_knows(ok, db, table):
    writer = begun(table)
    known = lines(ok("lock", "list"))[0]["uncommitted"]
    writer.commit()
    clean = lines(ok("lock", "list"))[0]["uncommitted"]
    db.close()

    unknown = lines(ok("lock", "list"))[0]["uncommitted"]

    assert (known, clean, unknown) == (True, False, None)


def test_a_released_owner_is_taken_back_fenced_and_forgotten(run, ok, db, table):
    writer = begun(table)

    done = run("lock", "release", "web.pages", "hourly", "--yes")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "taken back; its last committed epoch was 0" in done.stderr
    assert table.get_one(page="/")["pv"] == 5
    assert ok("lock", "list") == ""
    with pytest.raises(Fenced):
        writer.put({"page": "/", "pv": 7})
    assert table.writer(owner="hourly", columns=["pv"]).committed is None


def test_an_owner_is_released_with_what_it_has_not_committed(ok, table):
    begun(table)

    ok("lock", "release", "web.pages", "hourly", "--keep", "-y")

    assert table.get_one(page="/")["pv"] == 6
    assert ok("lock", "list") == ""


def test_whoever_is_not_there_cannot_be_released(run, table):
    gone = run("lock", "release", "web.pages", "nobody", "--yes")
    nowhere = run("lock", "release", "nowhere", "nobody", "--yes")

    assert (gone.exit_code, "kolk lock list" in gone.stderr) == (3, True)
    assert (nowhere.exit_code, "there is no table" in nowhere.stderr) == (3, True)


def test_an_owner_that_holds_no_columns_is_forgotten_too(run, db, table):
    begun(table).close()

    done = run("lock", "release", "web.pages", "hourly", "-y")

    assert done.exit_code == 0
    assert table.writer(owner="hourly", columns=["pv"]).committed is None


def test_nothing_is_taken_back_without_a_yes(run, on_terminal, db, table):
    begun(table)

    piped = run("lock", "release", "web.pages", "hourly")
    db.close()
    no, asked = on_terminal("lock", "release", "web.pages", "hourly", typed="n\n")
    _, kept = on_terminal("lock", "release", "web.pages", "hourly", "--keep", typed="n\n")
    yes, _ = on_terminal("lock", "release", "web.pages", "hourly", typed="y\n")
    left = run("lock", "list")

    assert (piped.exit_code, "--yes" in piped.stderr) == (2, True)
    assert no == 1
    assert "hourly of web.pages is live. Take back what it has not committed, and forget which epoch" in asked
    assert "nothing was done" in asked
    assert "Keep what it has not committed, as if it were" in kept
    assert (yes, left.stdout) == (0, "")


def test_a_status_tells_who_holds_columns_and_what_became_of_owners(ok, table):
    begun(table)

    found = json.loads(ok("status", "-f", "json"))["owners"]
    shown = ok("status", "-f", "table")

    assert (found["locks"], found["live"], found["dirty"], found["committed"]) == (1, 1, 1, 1)
    assert "1 holds columns, 1 live, 1 with uncommitted changes\n" in shown
