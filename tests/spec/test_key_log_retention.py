"""The log of a table with a key goes, too: below its snapshots, and never under anybody who still needs it."""

import sqlite3

import pytest
from tests.spec.kept import follow, numbers, present, same_rows
from tests.spec.replica import by_key
from tests.spec.scanned import SCHEMA, ids, rows

from kolk.errors import Corrupted, HolderLost, InvalidSchema, LeaseExists, LeaseLost, OffsetOutOfRange

HOUR = 3_600
DAY = 24 * HOUR
TTL = {"table.log.ttl": "3h"}


def hourly(timed, table, numbers):
    """A row an hour, each in a log file of its own."""
    for n in numbers:
        table.put(rows([n]))
        timed.clock.advance(seconds=HOUR)


def start(table):
    return table.describe()["offsets"]["0"]["start"]


def end(table):
    return table.describe()["offsets"]["0"]["end"]


def log_options(table):
    return {name: value for name, value in table.describe()["options"].items() if name.startswith("table.log.")}


@pytest.fixture
def table(timed):
    """Nine rows; all but the last three have had their time."""
    made = timed.db.create_table("t", SCHEMA, options=TTL)
    hourly(timed, made, range(9))
    return made


# --- how far


def test_nothing_goes_before_the_first_snapshot(timed, table):
    timed.clock.advance(seconds=1_000 * DAY)
    timed.engine.tick()

    assert start(table) == 0
    assert len(present(table)) == 9


def test_what_is_too_old_goes_once_it_is_in_the_oldest_snapshot_that_is_retained(timed, table):
    table.take_snapshot()
    hourly(timed, table, range(9, 12))
    timed.engine.tick()
    assert start(table) == 9  # the one snapshot has all up to there

    table.take_snapshot()
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()
    assert start(table) == 9  # and is retained, should the new one be damaged

    table.put(rows([12]))
    table.take_snapshot()
    timed.engine.tick()
    assert start(table) == 12


def test_a_snapshot_takes_nothing_that_has_not_had_its_time(timed, table):
    table.take_snapshot()

    timed.engine.tick()

    assert start(table) == 7
    assert ids(table.scan().to_arrow()) == list(range(9))


def test_all_of_the_log_may_go(timed, table):
    table.take_snapshot()
    timed.clock.advance(seconds=DAY)

    timed.engine.tick()

    assert (start(table), end(table)) == (9, 9)
    table.put(rows([9]))
    assert len(present(table)) == 10


def test_what_is_too_much_goes_likewise(timed):
    table = timed.db.create_table("t", SCHEMA, options={"table.log.max-bytes": "1"})
    hourly(timed, table, range(5))
    timed.engine.tick()
    assert start(table) == 0

    table.take_snapshot()
    timed.engine.tick()

    assert start(table) == 4  # the last file always stays


def test_a_table_that_was_told_nothing_keeps_its_log(timed):
    table = timed.db.create_table("t", SCHEMA)
    hourly(timed, table, range(3))
    table.take_snapshot()
    timed.clock.advance(seconds=1_000 * DAY)

    timed.engine.tick()

    assert start(table) == 0


def test_whoever_comes_for_what_went_is_told(timed, table):
    table.take_snapshot()
    timed.engine.tick()

    with pytest.raises(OffsetOutOfRange, match="trimmed"):
        table.changelog(start={"0": 6})
    assert [row["id"] for batch in table.changelog() for row in batch.to_pylist()] == [7, 8]


def test_the_options_are_shown_altered_and_survive_a_reopen(timed):
    ddl = "CREATE TABLE t (id INT, PRIMARY KEY (id)) WITH ('table.log.ttl' = '168 h', 'table.log.max-bytes' = '1000')"
    timed.db.execute(ddl)
    assert log_options(timed.db.table("t")) == {"table.log.ttl": "7d", "table.log.max-bytes": "1000"}

    timed.db.execute("ALTER TABLE t SET ('table.log.ttl' = '3h', 'table.log.max-bytes' = '-1')")
    timed.reopen()

    assert log_options(timed.db.table("t")) == {"table.log.ttl": "3h"}
    assert "'table.log.ttl' = '3h'" in timed.db.table("t").describe()["ddl"]
    with pytest.raises(InvalidSchema, match=r"table\.log\.ttl is a"):
        timed.db.execute("ALTER TABLE t SET ('table.log.ttl' = 'soon')")


def test_an_option_that_is_set_later_counts_from_then_on(timed):
    table = timed.db.create_table("t", SCHEMA)
    hourly(timed, table, range(5))
    table.take_snapshot()
    timed.engine.tick()
    assert start(table) == 0

    table.set_options(TTL)
    timed.engine.tick()

    assert start(table) == 3


# --- who keeps it


def test_a_lease_keeps_the_log_after_it(timed, table):
    """Lease vs log TTL."""
    lease = table.lease(ttl="7d")
    found = table.scan(source=lease).to_arrow().to_pylist()
    for turn in range(3):
        table.put(rows(range(9 + turn), n=turn + 1))
        table.take_snapshot()
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()

    assert start(table) == 9
    assert follow(table, found, lease.offsets["t"]) == present(table)
    lease.close()
    timed.engine.tick()
    assert start(table) > 9


def test_a_lease_that_expired_keeps_nothing(timed, table):
    """Lease vs log TTL: it was told to end, and the log goes with it."""
    table.lease(ttl="1d").detach()
    for turn in range(3):
        table.put(rows(range(9 + turn), n=turn + 1))
        table.take_snapshot()
    timed.clock.advance(seconds=2 * DAY)
    timed.engine.reap()
    timed.engine.tick()

    assert start(table) > 9


@pytest.mark.parametrize("source", ["live", "snapshot"])
def test_an_open_scan_keeps_the_log_after_it(bench, source):
    timed = bench(scan_page_rows=4, scan_page_bytes_max=420)
    table = timed.db.create_table("t", SCHEMA, options=TTL)
    hourly(timed, table, range(9))
    table.take_snapshot()
    scan = table.scan(source=source, ttl="1d")
    for turn in range(3):
        table.put(rows(range(9 + turn), n=turn + 1))
        table.take_snapshot()
    timed.clock.advance(seconds=DAY / 2)
    timed.engine.tick()

    assert start(table) == 9
    found = scan.to_arrow().to_pylist()
    assert follow(table, found, scan.offsets) == present(table)
    timed.clock.advance(seconds=2 * DAY)
    timed.engine.reap()
    timed.engine.tick()
    assert start(table) > 9


def test_a_follower_keeps_what_it_has_not_seen(timed, table):
    read = table.changelog(follower="job", stop={"0": 3})
    assert [row["id"] for batch in read for row in batch.to_pylist()] == [0, 1, 2]
    table.take_snapshot()

    timed.engine.tick()
    assert start(table) == 3

    assert [row["id"] for batch in table.changelog(follower="job") for row in batch.to_pylist()] == list(range(3, 9))
    timed.engine.tick()
    assert start(table) == 7


def test_a_lease_keeps_the_log_across_a_restart(timed, table):
    state = table.lease(ttl="7d", lease_id="a").detach()
    for turn in range(3):
        table.put(rows(range(9 + turn), n=turn + 1))
        table.take_snapshot()
    timed.reopen()
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()

    table = timed.db.table("t")
    assert start(table) == 9
    again = timed.db.join_lease("a")
    found = table.scan(source=again).to_arrow().to_pylist()
    assert follow(table, found, dict(state.tables["t"].start)) == present(table)
    again.close()


# --- who keeps too much


def churned(timed, table):
    """Three more snapshots, and all of the log has had its time."""
    for turn in range(3):
        table.put(rows(range(9), n=turn + 1))
        table.take_snapshot()
    timed.clock.advance(seconds=DAY)


def test_a_lease_that_keeps_too_much_is_dropped_and_its_holder_is_told(bench):
    timed = bench(log_pinned_max_bytes=500)
    table = timed.db.create_table("t", SCHEMA, options=TTL)
    hourly(timed, table, range(9))
    told = []
    lease = table.lease(ttl="7d", on_lost=told.append)
    churned(timed, table)

    timed.engine.tick()

    assert timed.db.leases() == []
    assert start(table) > 9
    lease.turn()
    assert [lost.reason for lost in told] == ["dropped"]
    with pytest.raises(LeaseLost):
        table.scan(source=lease)
    assert len(numbers(table)["0"]) == 2
    assert len(present(table)) == 9


def test_of_leases_and_followers_the_one_that_keeps_the_most_goes_first(bench):
    timed = bench(log_pinned_max_bytes=1_500)
    table = timed.db.create_table("t", SCHEMA, options=TTL)
    hourly(timed, table, range(9))
    table.changelog(follower="greedy")
    table.lease(ttl="7d", lease_id="modest").detach()
    table.put(rows(range(9), n=1))
    table.take_snapshot()
    table.put(rows(range(9), n=2))
    table.take_snapshot()
    timed.clock.advance(seconds=DAY)

    timed.engine.tick()

    assert [each.state for each in timed.db.followers()] == ["lost"]
    assert [each.id for each in timed.db.leases()] == ["modest"]
    assert start(table) == 9
    with pytest.raises(HolderLost):
        table.changelog(follower="greedy")


def test_nobody_is_released_for_log_that_must_stay_anyway(bench):
    """Before the first snapshot, and after the oldest one, it is recovery that keeps it."""
    timed = bench(log_pinned_max_bytes=1)
    table = timed.db.create_table("t", SCHEMA, options=TTL)
    hourly(timed, table, range(9))
    table.changelog(follower="job")
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()
    assert [each.state for each in timed.db.followers()] == ["live"]

    list(table.changelog(follower="job"))
    lease = table.lease(ttl="7d")
    table.put(rows(range(9), n=1))
    table.take_snapshot()
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()

    lease.renew()
    assert start(table) == 9
    lease.close()


# --- what is left is enough


def lose_kv(folder, table):
    for kv in (folder / "tables" / str(table.info.id)).rglob("kv"):
        for file in sorted(kv.rglob("*"), reverse=True):
            file.unlink()
        kv.rmdir()


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_kv_that_is_lost_comes_back_after_the_log_was_trimmed(timed, folder, table, how):
    table.delete([0])
    table.take_snapshot()
    table.put(rows([1], n=5))
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()
    assert start(table) == 10
    table.put(rows([2], n=6))
    before = present(table)
    timed.db.close()
    timed.engine.close()

    if how == "gone":
        lose_kv(folder, table)
    else:
        for path in (folder / "tables").rglob("CURRENT"):
            path.write_bytes(b"garbage")
    timed.reopen()

    table = timed.db.table("t")
    assert present(table) == before
    assert table.put(rows([2], n=7)).offsets == {"0": 16}
    with table.scan(source="snapshot") as scan:
        assert follow(table, scan.to_arrow().to_pylist(), scan.offsets) == present(table)


def test_a_kv_that_is_lost_comes_back_from_the_snapshot_before_if_the_newest_is_damaged(timed, folder, table):
    for turn in range(3):
        table.put(rows(range(9), n=turn))
        table.take_snapshot()
    timed.clock.advance(seconds=DAY)
    timed.engine.tick()
    assert start(table) > 9
    before = present(table)
    timed.db.close()
    timed.engine.close()

    newest = max((folder / "snapshots").rglob("*.manifest"), key=lambda path: int(path.stem))
    for file in newest.with_suffix("").glob("*.sst"):
        # Its own copy: what it shares with the one before is one file under two names.
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.unlink()
        file.write_bytes(data)
    lose_kv(folder, table)
    timed.reopen()

    assert present(timed.db.table("t")) == before


# --- a lease that cannot be read


def spoil(folder, id):
    """Write garbage into the record of a lease."""
    with sqlite3.connect(folder / "meta.sqlite") as meta:
        changed = meta.execute("UPDATE record SET value = ? WHERE key = ?", (b"garbage", f"lease/{id}"))
        assert changed.rowcount == 1
    meta.close()


def test_a_lease_that_cannot_be_read_keeps_everything_until_it_is_dropped(timed, folder, table):
    """Load failure at start: delete nothing, trim nothing, and go on."""
    table.lease(ttl="1d", lease_id="a").detach()
    table.lease(ttl="7d", lease_id="b").detach()
    timed.db.close()
    timed.engine.close()
    spoil(folder, "a")
    timed.reopen()

    table = timed.db.table("t")
    for turn in range(4):
        table.put(rows(range(9), n=turn + 1))
        table.take_snapshot()
    timed.clock.advance(seconds=3 * DAY)
    timed.engine.reap()
    timed.engine.tick()

    assert numbers(table) == {"0": [1, 2, 3, 4, 5]}
    assert start(table) == 0
    assert [(each.id, each.is_readable) for each in timed.db.leases()] == [("b", True), ("a", False)]
    for ask in (lambda: timed.db.join_lease("a"), lambda: timed.db.describe_lease("a")):
        with pytest.raises(Corrupted, match="cannot be read"):
            ask()
    with pytest.raises(LeaseExists):
        table.lease(lease_id="a")
    assert {row["n"] for row in present(table).values()} == {4}
    good = timed.db.join_lease("b")
    assert same_rows(table.scan(source=good).to_arrow().to_pylist(), rows(range(9)))

    assert timed.db.drop_lease("a")
    timed.engine.reap()
    timed.engine.tick()

    assert numbers(table) == {"0": [1, 4, 5]}
    assert start(table) == 9
    assert by_key(table, table.scan(source=good).to_arrow()) == by_key(table, rows(range(9)))
    good.close()
    timed.clock.advance(seconds=HOUR)
    timed.engine.reap()
    timed.engine.tick()
    assert numbers(table) == {"0": [4, 5]}
    assert start(table) > 9
    table.lease(lease_id="a").close()


def test_a_lease_that_lacks_a_record_keeps_everything_too(timed, folder, table):
    table.lease(ttl="1d", lease_id="a").detach()
    timed.db.close()
    timed.engine.close()
    with sqlite3.connect(folder / "meta.sqlite") as meta:
        assert meta.execute("DELETE FROM record WHERE key LIKE 'lease/a/%/%'").rowcount == 1
    meta.close()
    timed.reopen()

    table = timed.db.table("t")
    for turn in range(3):
        table.put(rows(range(9), n=turn + 1))
        table.take_snapshot()
    timed.clock.advance(seconds=3 * DAY)
    timed.engine.reap()
    timed.engine.tick()

    assert (numbers(table), start(table)) == ({"0": [1, 2, 3, 4]}, 0)
    assert timed.db.drop_lease("a")
    timed.reopen()
    assert timed.db.leases() == []


def test_restarts_do_not_make_a_lease_immortal(timed, table):
    table.lease(ttl="1h", lease_id="a").detach()
    for _ in range(4):
        timed.clock.advance(seconds=HOUR / 2)
        timed.engine.reap()
        timed.reopen()

    timed.clock.advance(seconds=HOUR / 3)
    timed.engine.reap()

    assert timed.db.leases() == []


def test_the_time_that_a_database_was_closed_ends_no_lease(timed, table):
    table.lease(ttl="1h", lease_id="a").detach()
    timed.db.close()
    timed.engine.close()
    timed.clock.jump(30 * DAY * 1_000)
    timed.reopen()
    timed.engine.reap()
    timed.engine.tick()

    assert [each.id for each in timed.db.leases()] == ["a"]
    timed.db.join_lease("a").close()
