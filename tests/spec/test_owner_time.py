"""Undo and what happens beside it: rows whose time is up, log that goes, tables that change, owners without undo."""

from datetime import UTC, datetime

import pytest
from tests.spec.owned import PLAIN, TTL, open_rack

import kolk
from kolk.errors import ColumnLockConflict, InvalidArgument, InvalidRows, OwnerRolledBack, UndoImpossible
from kolk.model.ids import OwnerTag, UndoTag

KEYS = range(6)


@pytest.fixture
def rack(folder):
    with open_rack(folder, log_segment_bytes=1) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def p(rack):
    return rack.create(schema=PLAIN, buckets=1)


def every(keys=KEYS, **values):
    return {key: values for key in keys}


# --- time


@pytest.fixture
def timed(rack):
    options = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}
    return rack.create(schema=PLAIN, buckets=1, options=options)


def test_h31_a_row_whose_time_was_up_does_not_come_back(timed):
    """H31: nor as a half row that never expires."""
    now = datetime.fromtimestamp(timed.rack.clock.now_ms() / 1_000, UTC).replace(tzinfo=None)
    timed.put([{"k": key, "a": 1, "b": "x", "at": now} for key in (1, 2)])
    a = timed.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}})
    timed.rack.clock.advance(seconds=3_601)
    timed.engine.tick()
    assert timed.rows() == {}
    timed.put([{"k": 2, "b": "new"}], columns=["b"])

    timed.begin(columns=["a"])

    timed.check({2: {"b": "new"}})


def test_h31_rows_are_not_judged_by_a_time_that_may_be_taken_back(timed):
    """H31: expiry waits for the owner of its column, until its next commit, and then goes on."""
    now = datetime.fromtimestamp(timed.rack.clock.now_ms() / 1_000, UTC).replace(tzinfo=None)
    timed.put([{"k": 1, "b": "x"}, {"k": 2, "b": "x"}], columns=["b"])
    a = timed.begin(columns=["at"])
    a.put({1: {"at": now}})
    timed.rack.clock.advance(seconds=3_601)
    timed.engine.tick()
    timed.engine.tick()
    assert set(timed.rows()) == {1, 2}

    a.commit()
    timed.engine.tick()

    assert set(timed.rows()) == {2}


# --- the log that an undo needs


def test_h36_what_is_not_committed_holds_the_log(rack):
    """H36: the log is kept from the first frame on that may be taken back, and no longer."""
    t = rack.create(buckets=1, options={"table.log.ttl": "1s"})
    a = t.begin()
    a.put(every(pv=1))
    a.commit()
    a.put(every(pv=5), 1)
    t.put([{"k": 1, "title": "x"}], columns=["title"])
    _age(t)
    start = t.table.describe()["offsets"]["0"]["start"]
    assert 0 < start <= len(KEYS)

    t.begin()

    assert t.rows() == every(pv=1) | {1: {"pv": 1, "title": "x"}}
    _age(t)
    assert t.table.describe()["offsets"]["0"]["start"] > start


def test_h36_an_owner_that_holds_too_much_log_is_undone_and_evicted(folder):
    """H36: the hold is never dropped with the dirt left in."""
    with open_rack(folder, log_segment_bytes=1, log_pinned_max_bytes=100) as rack:
        t = rack.create(buckets=1, options={"table.log.ttl": "1s"})
        a = t.begin(ttl=86_400.0)
        a.put(every(pv=1))
        a.commit()
        a.put(every(pv=5), 1)
        for number in range(5):
            t.put([{"k": number, "title": "x"}], columns=["title"])

        _age(t)

        with pytest.raises(OwnerRolledBack):
            a.put(every(pv=5), 1)
        assert {key: row["pv"] for key, row in t.rows().items()} == dict.fromkeys(KEYS, 1)
        assert not t.locks()


def test_h36_what_cannot_be_undone_is_said_and_kept_by_choice(rack):
    """H36: UndoImpossible names bucket and offsets, the owner stays dirty, release with keep is the way out."""
    t = rack.create(buckets=1, options={"table.log.ttl": "1s"})
    a = t.begin()
    a.put(every(pv=1))
    t.engine.take_due()
    t.rack.clock.advance(seconds=700)
    t.engine.take_due()
    info = t.table.info
    with t.engine._tablets.use_one(info, info.bucket_ids[0]) as tablet:
        t.put([{"k": 99, "title": "x"}], columns=["title"])
        tablet._kv.flush()
        tablet.log.trim(tablet.end)  # as no retention would

    for _ in range(2):
        with pytest.raises(UndoImpossible, match="offset 0"):
            t.begin()
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "pv": 1}], columns=["pv"])
    t.rack.clock.advance(seconds=2 * TTL)
    with pytest.raises(UndoImpossible):
        t.begin("b")
    with pytest.raises(UndoImpossible):
        t.rack.db.release_lock("t", "a")

    assert t.rack.db.release_lock("t", "a", keep=True)

    assert t.rows()[1] == {"pv": 1}
    t.begin("b").put({1: {"pv": 1}})


def _age(t):
    """Snapshots are taken, time passes, and the log is trimmed."""
    for _ in range(2):
        t.rack.clock.advance(seconds=700)
        t.engine.take_due()
    t.engine.tick()


# --- without undo


def test_h33_without_undo_nothing_is_taken_back_and_no_delete_is_let_in(t):
    """H33: fixed when the record is made, for functions that do not mind a replay; db.locks() says so."""
    a = t.begin(columns=["top"], undo="none")
    a.put(every(top=5))
    with pytest.raises(InvalidRows, match="undo"):
        a.delete([1])
    assert t.locks()["a"].undo == "none"
    with pytest.raises(InvalidArgument):
        t.begin(columns=["top"])

    a = t.begin(columns=["top"], undo="none")
    t.check(every(top=5))
    a.put(every(top=4))
    t.rack.clock.advance(seconds=TTL)
    t.begin("b", columns=["top"]).put({1: {"top": 9}})

    t.check(every(top=5) | {1: {"top": 9}})


@pytest.mark.parametrize("column", ["pv", "note", "title"])
def test_h33_without_undo_is_not_for_functions_that_a_replay_changes(t, column):
    """H33: sums, lists and last values are taken back, or not at all."""
    with pytest.raises(InvalidArgument, match="undo"):
        t.begin(columns=[column], undo="none")


def test_h33_without_undo_holds_no_log(rack):
    """H33: what is never taken back needs none."""
    t = rack.create(buckets=1, options={"table.log.ttl": "1s"})
    a = t.begin(columns=["top"], undo="none")
    a.put(every(top=5))
    a.put(every(top=6))
    _age(t)

    assert t.table.describe()["offsets"]["0"]["start"] > 0


# --- tables that change


def test_a_column_that_was_renamed_widened_moved_or_dropped_is_taken_back_as_it_is_now(rack):
    """Dropped own column: left out. Widened: converted. Renamed: by its id."""
    schema = kolk.Schema([kolk.Column("k", "int"), *(kolk.Column(name, "int") for name in "abcd")], "k")
    t = rack.create(schema=schema)
    t.put([{"k": 1, "a": 1, "b": 1, "c": 1, "d": 1}])
    a = t.begin(columns=["a", "b", "c"])
    a.put({1: {"a": 5, "b": 5, "c": 5}, 2: {"a": 5, "b": 5, "c": 5}})
    t.table.alter(
        [kolk.RenameColumn("a", "z"), kolk.WidenColumn("b", "bigint"), kolk.DropColumn("c"),
         kolk.AddColumn(kolk.Column("e", "int", default=3)), kolk.MoveColumn("b", first=False, after="d")]
    )  # fmt: skip
    t.put([{"k": 1, "d": 9}], columns=["d"])

    b = t.begin(columns=["z", "b"])

    assert t.rows() == {1: {"z": 1, "b": 1, "d": 9, "e": 3}}
    assert t.locks()["a"].columns == ("z", "b")
    b.put({1: {"z": 2**20, "b": 2**40}})


def test_an_owner_all_of_whose_columns_were_dropped_has_nothing_to_undo(rack):
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int"), kolk.Column("b", "int")], "k")
    t = rack.create(schema=schema)
    t.begin(columns=["a"]).put({1: {"a": 1}})
    t.table.drop_column("a")

    t.begin(columns=["b"])

    assert set(t.rows()) <= {1}
    assert t.locks()["a"].columns == ("b",)


def test_a_partition_that_was_dropped_counts_as_undone(rack):
    """G4: partitions are undone each, and one that goes is no hindrance."""
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("k", "int"), kolk.Column("a", "int")], ["day", "k"])
    t = rack.create(schema=schema, partition_by=["day"], buckets=1)
    w = t.table.writer("a", ["a"])
    w.put([{"day": day, "k": day, "a": 1} for day in range(3)])
    w.commit()
    w.put([{"day": day, "k": day, "a": 9} for day in range(5)])

    def drop(done, all):
        if done == 1:
            t.table.drop_partition(day=2)

    t.begin(columns=["a"], on_progress=drop)

    t.check({day: {"day": day, "a": 1} for day in range(2)})


def test_undo_frames_are_the_store_s_and_name_the_owner(t):
    a = t.begin()
    a.put(every(pv=1))
    t.begin()

    own, undo, done = t.frames()
    assert isinstance(own, OwnerTag)
    assert undo == UndoTag(a.record.number, 2, done=False)
    assert done == UndoTag(a.record.number, 2, done=True)
