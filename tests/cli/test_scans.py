"""Scans as people see them: how far one is, which are open, and what its reader is told when one is ended."""

import json
import os
from collections import Counter

import pytest
from tests.cli.output import lines

import kolk
from kolk.engine.database import Engine
from kolk.errors import UnknownOrExpiredScan
from kolk.model.grant import Grant
from kolk.runtime.folder import Folder
from kolk.server.run import Server
from kolk.server.tokens import Tokens
from kolk.testing.clock import ManualClock

MANY = 300_000
"""So many rows that no pipe or socket holds them: a scan that nobody takes them from waits in the middle."""


@pytest.fixture
def events(ok):
    """A log table of ten rows in two buckets."""
    ok("table", "create", "events", "--columns", "n int", "--buckets", "2")
    for n in range(10):
        ok("put", "events", "-i", "csv", input=f"n\n{n}\n")
    return "events"


@pytest.fixture
def db(folder):
    """The folder of the commands, in this process: so they see its scans."""
    with kolk.connect(folder) as database:
        yield database


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def server(folder, pages, clock):
    """A server of the pages, whose time stands still."""
    engine = Engine(Folder(folder), kolk.EngineConfig(durability="process"), clock=clock)
    with Server(engine, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1), engine.close) as running:
        yield running


@pytest.fixture
def remote(server, pages):
    """A connection to it, after many rows were put."""
    with kolk.connect(server.url) as database:
        database.table(pages).put([{"page": f"/{n:0100}", "pv": n, "title": None} for n in range(MANY)])
        yield database


@pytest.fixture
def scanning(remote, server, start, pages):
    """Start a scan, and wait until rows flow."""

    def begin(*options):
        process = start("scan", pages, "--url", server.url, *options)
        while not any(scan.rows for scan in remote.scans()):
            assert process.poll() is None
        return process

    return begin


# --- kolk scan


def test_a_person_sees_how_far_a_scan_is(on_terminal, pages, ok, tmp_path):
    ok("put", pages, "-i", "csv", input="page\n" + "".join(f"{n:04}\n" for n in range(998)))
    file = tmp_path / "pages.csv"

    _, whole = on_terminal("scan", pages, "-o", file)
    _, limited = on_terminal("scan", pages, "-o", file, "--limit", "500")
    _, chosen = on_terminal("scan", pages, "-o", file, "--where", "pv IS NULL")
    _, quiet = on_terminal("scan", pages, "-o", file, "--quiet")

    assert "%" in whole
    assert "1,000 rows" in whole
    assert "wrote 1,000 rows to" in whole
    assert "100%" in limited
    assert "500 rows" in limited
    assert "998 rows" in chosen
    assert "%" not in chosen
    assert quiet == ""


def test_a_scan_shows_the_buckets_it_is_asked_for(ok, run):
    ok("table", "create", "t", "--columns", "id int", "-k", "id", "--buckets", "3")
    ok("put", "t", "-i", "csv", input="id\n" + "".join(f"{n}\n" for n in range(30)))

    parts = [lines(ok("scan", "t", "--bucket", str(bucket))) for bucket in range(3)]
    two = lines(ok("scan", "t", "--bucket", "0", "--bucket", "2"))
    none = run("scan", "t", "--bucket", "3")

    assert sorted(row["id"] for part in parts for row in part) == list(range(30))
    assert two == parts[0] + parts[2]
    assert (none.exit_code, "no bucket '3'" in none.stderr) == (1, True)


def test_a_scan_of_a_log_table_shows_its_last_rows(ok, events):
    assert [row["n"] for row in lines(ok("scan", events, "--limit", "3"))] == [7, 8, 9]
    assert ok("scan", events, "--limit", "3", "-f", "table").split() == ["n", "─", "7", "8", "9"]
    assert ok("scan", events, "--limit", "0") == ""


@pytest.mark.parametrize("format", ["jsonl", "table"])
def test_a_scan_of_a_whole_log_table_says_what_to_do(run, events, format):
    done = run("scan", events, "-f", format)

    assert done.exit_code == 1
    assert "--limit N" in done.stderr
    assert "kolk tail events --from earliest" in done.stderr


def test_a_scan_that_an_operator_closes_ends_with_an_error(scanning, remote, run, server):
    process = scanning()
    (scan,) = remote.scans()

    closed = run("scans", "close", scan.id, "--url", server.url)
    out, err = process.communicate(timeout=60)

    assert (closed.exit_code, closed.stderr) == (0, f"closed {scan.id}\n")
    written = len(out.splitlines())
    assert 0 < written < MANY
    assert process.returncode == 3
    assert err.startswith("error: this scan was closed")
    assert f"the {written:,} rows before that were written; the others are missing" in err


def test_a_file_whose_scan_was_closed_is_not_there(remote, start, server, pages, tmp_path):
    file = tmp_path / "pages.csv"
    pipe = tmp_path / "pages.csv.partial"  # in place of the file in the making, so that it can be kept waiting
    os.mkfifo(pipe)
    process = start("scan", pages, "--url", server.url, "-o", file)

    with pipe.open("rb") as written:  # opens when the command does
        (scan,) = remote.scans()
        remote.close_scan(scan.id)
        written.read()
    _, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert f"{file} was not written" in err
    assert not file.exists()


def test_a_pipe_has_the_rows_that_came_before_its_scan_was_closed(remote, start, server, pages, tmp_path):
    pipe = tmp_path / "pages.csv"
    os.mkfifo(pipe)
    process = start("scan", pages, "--url", server.url, "-o", pipe)

    with pipe.open("rb") as written:  # opens when the command does
        (scan,) = remote.scans()
        remote.close_scan(scan.id)
        rows = len(written.read().splitlines()) - 1
    _, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert f"the {rows:,} rows before that were written; the others are missing" in err


def test_a_scan_that_nobody_takes_from_expires_with_an_error(scanning, remote, clock):
    process = scanning()

    while remote.scans():  # again, if a page was in the making
        clock.advance(seconds=61)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert 0 < len(out.splitlines()) < MANY
    assert "nobody has read this scan for 60 s" in err


def test_a_scan_is_waited_for_as_long_as_one_says(scanning, remote, clock, run, pages):
    process = scanning("--ttl", "1h")

    clock.advance(seconds=3_000)
    (scan,) = remote.scans()
    out, _ = process.communicate(timeout=60)

    assert scan.expires is not None
    assert process.returncode == 0
    assert len(out.splitlines()) == MANY + 2
    assert run("scan", pages, "--ttl", "soon").exit_code == 2


# --- kolk scans


def test_open_scans_are_listed_with_all_there_is_to_know(ok, db, pages):
    with db.table(pages).scan(shared=True) as shared, db.table(pages).scan(ttl=60) as alone:
        next(iter(alone))
        listed = {one["id"]: one for one in lines(ok("scans", "list"))}

    assert list(listed[shared.id]) == [
        *("id", "table", "principal", "state", "shared", "opened", "last_use", "expires", "rows", "views", "bytes")
    ]
    assert listed[shared.id]["table"] == pages
    assert [listed[shared.id][name] for name in ("state", "shared", "rows", "views", "expires")] == [
        *("open", True, 0, 1, None)
    ]
    assert [listed[alone.id][name] for name in ("state", "shared", "rows")] == ["drained", False, 2]
    assert listed[alone.id]["expires"] > listed[alone.id]["last_use"]
    assert ok("scans", "list") == ""


def test_without_a_command_it_is_the_list(ok, run, db, pages):
    with db.table(pages).scan(shared=True) as scan:
        bare, formatted = ok("scans"), ok("scans", "-f", "json")

    assert [one["id"] for one in lines(bare)] == [one["id"] for one in json.loads(formatted)] == [scan.id]
    assert "close" in ok("scans", "--help")
    assert run("scans", "colse").exit_code == 2


def test_people_see_the_beginning_of_an_id_and_times_from_now(ok, run, db, pages):
    with db.table(pages).scan(shared=True, ttl="90m") as scan, db.table(pages).scan():
        shown = ok("scans", "-f", "table").splitlines()
    none = run("scans", "-f", "table")

    assert shown[0].split() == ["id", "table", "principal", "state", "age", "idle", "expires", "rows", "views", "bytes"]
    assert shown[2].split() == [*(scan.id[:8], pages, "shared", "0", "s", "0", "s", "in", "1", "h", "0", "1", "0")]
    assert shown[3].split()[-4:] == ["never", "0", "1", "0"]
    assert none.stderr == "there are no open scans\n"


def test_a_list_fits_a_usual_terminal(on_terminal, remote, server, scanning):
    process = scanning()

    _, seen = on_terminal("scans", "--url", server.url, env={"NO_COLOR": "1"})
    process.kill()

    head, _, row = seen.splitlines()[:3]
    assert head.split()[:9] == ["id", "table", "principal", "state", "age", "idle", "expires", "rows", "views"]
    assert row.split()[1:4] == ["web.pages", "anonymous", "open"]


def test_scans_are_closed_by_their_ids_or_the_beginning_of_them(ok, run, db, pages):
    table = db.table(pages)
    with table.scan(shared=True) as first, table.scan(shared=True) as second, table.scan(shared=True) as third:
        done = run("scans", "close", first.id, second.id[:8])
        left = [one["id"] for one in lines(ok("scans"))]
        some = run("scans", "close", third.id[:8], "nowhere")
        with pytest.raises(UnknownOrExpiredScan, match="closed"):
            first.to_arrow()

    assert (done.exit_code, done.stderr) == (0, f"closed {first.id}\nclosed {second.id}\n")
    assert left == [third.id]
    assert some.exit_code == 3
    assert some.stderr == (f"closed {third.id}\nerror: there is no open scan nowhere; `kolk scans` lists them\n")


def test_a_beginning_that_several_scans_share_closes_none(ok, run, folder, pages):
    with kolk.connect(folder, config=kolk.EngineConfig(scans_per_bucket_max=17)) as db:
        scans = [db.table(pages).scan(shared=True) for _ in range(17)]  # of 16 digits two have the first in common
        digits = Counter(scan.id[0] for scan in scans)

        done = run("scans", "close", digits.most_common(1)[0][0])
        left = lines(ok("scans"))

    assert (done.exit_code, "write more of the id" in done.stderr) == (2, True)
    assert len(left) == 17


def test_the_scan_of_another_is_closed_by_who_may_alter_the_table(folder, pages, server, run):
    tokens = Tokens(folder / "tokens.json")
    secrets = {
        name: tokens.create(name, [Grant.parse(f"*={operations}")])[1]
        for name, operations in {"reader": "read", "other": "read", "operator": "alter"}.items()
    }
    with kolk.connect(server.url, token=secrets["reader"]) as db, db.table(pages).scan(shared=True) as scan:

        def close(name):
            return run("scans", "close", scan.id, "--url", server.url, "--token", secrets[name])

        listed = run("scans", "--url", server.url, "--token", secrets["other"])
        denied, allowed, again = close("other"), close("operator"), close("operator")

    assert json.loads(listed.stdout)["principal"] == "reader"
    assert (denied.exit_code, "may alter web.pages" in denied.stderr) == (4, True)
    assert (allowed.exit_code, again.exit_code) == (0, 3)


def test_the_status_counts_the_scans(ok, db, pages):
    with db.table(pages).scan(shared=True):
        found = json.loads(ok("status"))["scans"]
        shown = ok("status", "-f", "table")

    assert (found["open"], found["views"], found["opened"]) == (1, 1, 1)
    assert "1 open with 1 view\n" in shown
