"""Snapshots and leases as people see them: what there is, what was taken, who keeps it, and what a doctor finds."""

import json
import re
import sqlite3

from tests.cli.output import lines

import kolk
from kolk.engine.database import Engine
from kolk.model.grant import Grant
from kolk.runtime.clock import SystemClock
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.run import Server
from kolk.server.tokens import Tokens
from kolk.testing.clock import ManualClock


def findings(done):
    return {one["check"]: one for one in lines(done.stdout)}


# --- kolk snapshot


def test_a_snapshot_that_is_taken_says_what_it_copied(run, ok, pages):
    first = run("snapshot", "take", pages)
    again = run("snapshot", "take", pages)
    ok("put", pages, "-i", "csv", input="page,pv,title\n/new,1,\n")
    second = run("snapshot", "take", pages)

    (taken,) = lines(first.stdout)
    assert (taken["bucket"], taken["snapshot"], taken["offset"], taken["rows"]) == ("0", 1, 2, 2)
    assert "took 1 of 1 bucket: 2 rows, copied " in first.stderr
    assert "nothing has changed" in again.stderr
    assert lines(second.stdout)[0]["snapshot"] == 2


def test_the_snapshots_of_a_table_are_listed(run, ok, pages):
    none = run("snapshot", "list", pages, "-f", "table")
    ok("snapshot", "take", pages)

    (listed,) = lines(ok("snapshot", "list", pages))
    shown = ok("snapshot", "list", pages, "-f", "table")

    assert f"kolk snapshot take {pages}" in none.stderr
    assert set(listed) == {"bucket", "snapshot", "offset", "rows", "schema", "taken", "bytes", "new_bytes", "leases"}
    assert listed["bytes"] == listed["new_bytes"] > 0
    assert "new_bytes" in shown


def test_a_log_table_has_no_snapshots(run, ok):
    ok("table", "create", "events", "--columns", "n int")

    done = run("snapshot", "take", "events")

    assert (done.exit_code, "log table" in done.stderr) == (1, True)


def test_a_scan_shows_the_rows_of_the_newest_snapshot(ok, pages):
    ok("snapshot", "take", pages)
    ok("put", pages, "-i", "csv", input="page,pv,title\n/new,1,\n")

    kept = lines(ok("scan", pages, "--source", "snapshot"))

    assert sorted(row["page"] for row in kept) == ["/", "/about"]
    assert len(lines(ok("scan", pages))) == 3


# --- kolk lease


def test_leases_are_listed_and_shown_with_every_pin(ok, db, pages):
    with db.table(pages).lease(lease_id="job-1"), db.table(pages).lease() as other:
        listed = {each["id"]: each for each in lines(ok("lease", "list"))}
        shown = ok("lease", "list", "-f", "table")
        pins = lines(ok("lease", "show", other.id[:8]))

    assert set(listed) == {"job-1", other.id}
    assert (listed["job-1"]["tables"], listed["job-1"]["pins"], listed["job-1"]["state"]) == ([pages], 1, "live")
    assert "job-1" in shown
    assert other.id[:8] in shown
    assert other.id not in shown
    assert pins == [{"table": pages, "bucket": "0", "snapshot": 1, "offset": 2}]


def test_no_leases_and_the_moment_of_one_are_told_to_people(run, db, pages):
    none = run("lease", "list", "-f", "table")
    with db.table(pages).lease(lease_id="job"):
        shown = run("lease", "show", "job", "-f", "table")

    assert "there are no leases" in none.stderr
    assert "each table is of one moment" in shown.stderr


def test_a_dropped_lease_says_what_it_kept_and_one_that_is_not_there_ends_with_3(run, ok, db, pages):
    with db.table(pages).lease(lease_id="job"):
        dropped = run("lease", "drop", "job")
        again = run("lease", "drop", "job")
    shown = run("lease", "show", "job")

    assert dropped.exit_code == 0
    assert f"dropped job, which kept 1 snapshot of {pages}, " in dropped.stderr
    assert (again.exit_code, "kolk lease list" in again.stderr) == (3, True)
    assert (shown.exit_code, "there is no lease job" in shown.stderr) == (3, True)


def test_the_lease_of_another_is_dropped_by_who_may_alter_the_table(folder, pages, run):
    engine = Engine(Folder(folder), kolk.EngineConfig(durability="process"), clock=ManualClock())
    with Server(engine, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1), engine.close) as server:
        tokens = Tokens(folder / "tokens.json")
        secrets = {
            name: tokens.create(name, [Grant.parse(f"*={operations}")])[1]
            for name, operations in {"reader": "read", "other": "read", "operator": "alter,describe"}.items()
        }
        with kolk.connect(server.url, token=secrets["reader"]) as db:
            lease = db.table(pages).lease()

            def drop(name):
                return run("lease", "drop", lease.id, "--url", server.url, "--token", secrets[name])

            denied, allowed, again = drop("other"), drop("operator"), drop("operator")
            lease.close()

    assert (denied.exit_code, f"may alter {pages}" in denied.stderr) == (4, True)
    assert (allowed.exit_code, again.exit_code) == (0, 3)


# --- kolk status and kolk doctor


def test_the_status_counts_snapshots_and_leases(ok, db, pages):
    with db.table(pages).lease(), db.table(pages).lease():
        found = json.loads(ok("status"))
        shown = ok("status", "-f", "table")

    assert (found["snapshots"]["taken"], found["snapshots"]["failed"]) == (1, 0)
    assert (found["leases"]["leases"], found["leases"]["pins"]) == (2, 2)
    assert found["leases"]["pinned_bytes"] == found["snapshots"]["copied_bytes"] > 0
    assert "2 live with 2 snapshots" in shown


def test_what_was_counted_is_told_of_a_server_and_not_of_a_folder_that_was_just_opened(ok, folder, pages):
    with kolk.start(folder) as server:
        ok("snapshot", "take", pages, "--url", server.url)
        of_server = ok("status", "-f", "table", "--url", server.url)
    of_folder = ok("status", "-f", "table")

    assert "every 10 m, the last in " in of_server
    assert "; 1 taken, " in of_server
    assert "every 10 m\n" in of_folder
    assert "so far" not in of_folder


def test_a_list_tells_people_how_long_ago_a_snapshot_was_taken(ok, pages):
    ok("snapshot", "take", pages)

    shown = ok("snapshot", "list", pages, "-f", "table", env={"COLUMNS": "80"})

    assert re.search(r" \d+ s ago ", shown)
    assert "…" not in shown


def test_a_doctor_finds_a_sound_database(run, ok, pages, folder):
    ok("snapshot", "take", pages)

    found = findings(run("doctor", folder))

    assert found["snapshots"]["state"] == "ok"
    assert "1 bucket of 1 table has one" in found["snapshots"]["found"]
    assert found["leases"]["state"] == "ok"


def test_a_doctor_finds_changes_that_are_in_no_snapshot(run, ok, folder):
    config = kolk.EngineConfig(durability="process")
    long_ago = ManualClock(now_ms=1_780_000_000_000)
    engine = Engine(Folder(folder), config, clock=long_ago)
    old = kolk.Database(engine, engine.close, Rng())
    schema = kolk.Schema([kolk.Column("id", "bigint")], "id")
    old.create_table("late", schema, buckets=2).put([{"id": 1}])
    old.create_table("fine", schema).put([{"id": 1}])
    old.table("fine").take_snapshot()
    old.close()
    ok("table", "create", "new", "--columns", "id bigint", "-k", "id")
    ok("put", "new", "-i", "csv", input="id\n1\n")

    found = findings(run("doctor", folder))["snapshots"]

    assert found["state"] == "warn"
    assert found["found"].endswith("are in none: late")


def test_a_doctor_does_not_miss_changes_that_a_log_has_let_go_of(run, folder):
    clock = ManualClock(now_ms=SystemClock().now_ms() - 60_000)
    engine = Engine(Folder(folder), kolk.EngineConfig(durability="process"), clock=clock)
    db = kolk.Database(engine, engine.close, Rng())
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "bigint")], "id"), options={"table.log.ttl": "1s"})
    table.put([{"id": 1}])
    table.take_snapshot()
    clock.advance(seconds=30)
    engine.tick()
    assert table.describe()["offsets"] == {"0": {"start": 1, "end": 1}}
    db.close()

    done = run("doctor", folder)

    assert done.exit_code == 0
    assert findings(done)["snapshots"]["state"] == "ok"


def test_a_doctor_finds_snapshots_that_cannot_be_used(run, ok, pages, folder):
    ok("snapshot", "take", pages)
    (manifest,) = folder.glob("snapshots/*/*/*/*.manifest")
    manifest.write_bytes(b"damaged")

    found = findings(run("doctor", folder))["snapshots"]

    assert (found["state"], "1 snapshots are damaged" in found["found"]) == ("warn", True)


def test_a_doctor_finds_leases_that_cannot_be_read(run, ok, pages, folder):
    with kolk.connect(folder) as db:
        db.table(pages).lease(lease_id="job").detach()
    meta = sqlite3.connect(folder / "meta.sqlite")
    with meta:
        meta.execute("UPDATE record SET value = x'00' WHERE key = 'lease/job'")
    meta.close()

    done = run("doctor", folder)
    listed = lines(ok("lease", "list"))
    shown = run("lease", "show", "job")
    dropped = run("lease", "drop", "job")

    assert done.exit_code == 1
    assert findings(done)["leases"]["next_step"].endswith("kolk lease drop job")
    assert [each["state"] for each in listed] == ["unreadable"]
    assert (shown.exit_code, "cannot be read" in shown.stderr) == (1, True)
    assert (dropped.exit_code, lines(ok("lease", "list"))) == (0, [])


def test_a_doctor_does_not_open_a_folder_of_another_format_or_one_in_use(run, ok, pages, folder, start):
    present = (folder / "FORMAT").read_text()
    (folder / "FORMAT").write_text("kolk 1\n")
    old = findings(run("doctor", folder))
    left = (folder / "FORMAT").read_text()
    (folder / "FORMAT").write_text(present)
    holder = start("tail", pages, "--follow")
    holder.stdout.readline()
    used = findings(run("doctor", folder))

    assert "was not opened" in old["database"]["found"]
    assert f"process {holder.pid}" in used["database"]["found"]
    assert left == "kolk 1\n"
