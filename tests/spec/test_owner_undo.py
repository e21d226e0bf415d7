"""Undo: what an owner has not committed is taken back, and nothing else is touched."""

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


# --- what comes back


def test_the_first_image_of_a_key_is_what_comes_back(t):
    """F1, F2, F3, the worked example: +I goes, the first -U comes back, +U says nothing, -D comes back."""
    t.put([{"k": 1, "pv": 10}, {"k": 3, "pv": 2}], columns=["pv"])
    a = t.begin()
    a.put({1: {"pv": 5}})
    a.put({2: {"pv": 7}})
    a.put({1: {"pv": 3}})
    a.delete([3])
    assert t.rows() == {1: {"pv": 18}, 2: {"pv": 7}}

    t.begin()

    t.check({1: {"pv": 10}, 3: {"pv": 2}})


@pytest.mark.parametrize(
    ("column", "values"),
    [("pv", (1, 2, 4)), ("top", (5, 9, 7)), ("note", ("a", "b", "c")), ("title", ("x", "y", None))],
)
def test_every_function_is_taken_back_by_its_image(t, column, values):
    """No function is inverted: sum, max, listagg and last_value alike."""
    a = t.begin(columns=(column,))
    a.put({1: {column: values[0]}})
    a.commit()
    before = t.rows()
    a.put({1: {column: values[1]}}, 1)
    a.put({1: {column: values[2]}, 2: {column: values[1]}}, 1)

    t.begin(columns=(column,))

    t.check(before)


def test_all_columns_are_taken_back_exactly_also_rows_without_a_value(p):
    """H32: under a lock of all columns undo is exact."""
    a = p.begin(columns=None)
    a.put([{"k": 1, "a": None, "b": None, "at": None}, {"k": 2, "a": 1, "b": None, "at": None}])
    a.commit()
    a.delete([1, 2], 1, whole=True)
    a.put([{"k": 3, "a": None, "b": None, "at": None}], 1)

    p.begin(columns=None)

    p.check({1: {}, 2: {"a": 1}})


def test_undo_never_makes_a_row_without_values(p):
    """H32: under a lock of some columns such a row counts as absent; the zombie row of the field."""
    p.put([{"k": 1, "b": "x"}], columns=["b"])
    a = p.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}})
    p.table.delete([1], columns=["b"])
    p.put([{"k": 2, "b": None}], columns=["b"])

    p.begin(columns=["a"])

    p.check({})


def test_what_others_wrote_stays(p):
    """G2, G3: others' columns are as they are now, also in rows that the owner made, or removed."""
    p.put([{"k": 1, "a": 1, "b": "old", "at": None}])
    a = p.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}, 3: {"a": 5}})
    p.put([{"k": 1, "b": "new"}, {"k": 2, "b": "theirs"}], columns=["b"])
    a.put({4: {"a": 5}})
    a.delete([4])
    p.put([{"k": 4, "b": "again"}], columns=["b"])

    p.begin(columns=["a"])

    p.check({1: {"a": 1, "b": "new"}, 2: {"b": "theirs"}, 4: {"b": "again"}})


def test_an_own_delete_then_anothers_insert_gets_the_own_columns_back(p):
    """Own -D then another's +I: own columns come back into their row."""
    p.put([{"k": 1, "a": 1}], columns=["a"])
    a = p.begin(columns=["a"])
    a.delete([1])
    assert p.rows() == {}
    p.put([{"k": 1, "b": "new"}], columns=["b"])

    p.begin(columns=["a"])

    p.check({1: {"a": 1, "b": "new"}})


def test_defaults_are_nobodys(rack):
    """A row that an owner made goes, with the defaults of the other columns; where others wrote, the own is default."""
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("a", "int", nullable=False, default=0), kolk.Column("b", "int"),
         kolk.Column("c", "int", default=7)],
        "k",
    )  # fmt: skip
    p = rack.create(schema=schema)
    a = p.begin(columns=["a"])
    a.put({1: {"a": 5}, 2: {"a": 5}})
    p.put([{"k": 2, "b": 1}], columns=["b"])

    a = p.begin(columns=["a"])

    p.check({2: {"a": 0, "b": 1, "c": 7}})
    b = p.begin("b", columns=["c"])
    b.put({2: {"c": None}})
    b.commit()
    a.put({2: {"a": 9}}, 1)
    p.begin(columns=["a"])
    p.check({2: {"a": 0, "b": 1}})


def test_a_row_that_comes_back_has_no_defaults_that_it_did_not_have(rack):
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int"), kolk.Column("c", "int", default=7)], "k")
    p = rack.create(schema=schema)
    p.put([{"k": 1, "a": 1, "c": None}])
    p.begin(columns=["a"]).delete([1])
    assert p.rows() == {}

    p.begin(columns=["a"])

    p.check({1: {"a": 1}})


@pytest.mark.parametrize("behavior", ["ignore", "disable", "allow"])
def test_undo_does_not_ask_what_clients_may_delete(rack, behavior):
    """Undo bypasses the delete behaviour."""
    t = rack.create(options={"table.delete.behavior": behavior})
    a = t.begin()
    a.put(every(pv=1))

    t.begin()

    t.check({})


@pytest.mark.parametrize("options", [{"table.merge-engine": "first_row"}, {"table.merge-engine": "versioned",
                                      "table.merge-engine.versioned.ver-column": "a"}])  # fmt: skip
def test_whole_rows_of_other_merge_engines_are_taken_back(rack, options):
    p = rack.create(schema=PLAIN, options=options)
    rows = [{"k": key, "a": 5, "b": "x", "at": None} for key in KEYS]
    p.put(rows[:2])
    p.begin(columns=None).put([row | {"a": 9} for row in rows])

    p.begin(columns=None)

    p.check({key: {"a": 5, "b": "x"} for key in (0, 1)})


# --- where an undo begins and ends


def test_what_was_undone_is_not_undone_again(t):
    """H30: fence 1 writes 5 and 6 and dies; fence 2 writes 5, commits it and dies: fence 1's 6 must not count."""
    one = t.begin()
    one.put(every(pv=1), 5)
    one.put(every(pv=1), 6)
    two = t.begin()
    two.put(every(pv=10), 5)
    two.commit(5)

    t.begin()
    t.rack.reopen()
    t.begin()

    t.check(every(pv=10))
    done = [tag for tag in t.frames() if isinstance(tag, UndoTag) and tag.done]
    assert [tag.fence for tag in done] == [2]


def test_two_rounds_of_undo_give_the_same(t):
    """G5: the second finds nothing to do, and writes nothing."""
    t.put([{"k": key, "pv": 1} for key in KEYS], columns=["pv"])
    t.begin().put(every(range(9), pv=5))
    t.begin()
    ends = t.table.describe()["offsets"]

    t.begin()

    assert t.table.describe()["offsets"] == ends
    t.check(every(pv=1))


def test_nothing_to_undo_writes_nothing(t):
    """F5: and a bucket that nobody has looked at since is not opened for it."""
    a = t.begin()
    a.put(every(pv=1))
    a.commit()
    frames = len(t.frames())

    t.begin()

    assert len(t.frames()) == frames


def test_closed_buckets_without_dirt_stay_closed(rack):
    """A begin opens what it must, and a commit too."""
    t = rack.create("many", buckets=40)
    a = t.begin()
    a.put(every(range(200), pv=1))
    a.commit()
    engine = t.engine
    for bucket in list(engine._tablets._entries):
        engine._tablets._rest(bucket)

    a = t.begin()
    a.put({1: {"pv": 1}}, 1)
    a.commit(1)

    assert len(engine._tablets._entries) == 1


def test_a_long_history_is_undone_in_parts(t, monkeypatch):
    """Several turns over the keys give what one gives."""
    monkeypatch.setattr("kolk.tablet.undoing.UNDO_BYTES", 200)
    t.put([{"k": key, "pv": 1} for key in range(30)], columns=["pv"])
    a = t.begin()
    for _ in range(3):
        a.put(every(range(60), pv=5))

    t.begin()

    t.check(every(range(30), pv=1))
    assert sum(isinstance(tag, UndoTag) for tag in t.frames()) > 3


def test_progress_is_told(t):
    t.begin().put(every(pv=1))
    seen = []

    t.begin(on_progress=lambda done, all: seen.append((done, all)))

    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert t.engine.status()["owners"]["undone_rows"] == len(KEYS)


def test_columns_change_only_after_the_undo_with_the_old_ones(t):
    """H25: what was written in columns that are given up is taken back too."""
    a = t.begin(columns=["pv", "top"])
    a.put(every(pv=1, top=1))
    a.commit()
    a.put(every(pv=5, top=5), 1)

    b = t.begin(columns=["top", "note"])

    t.check(every(pv=1, top=1))
    b.put(every(top=9, note="n"), 1)
    t.begin(columns=["pv"])
    t.check(every(pv=1, top=1))


# --- time


@pytest.fixture
def timed(rack):
    options = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}
    return rack.create(schema=PLAIN, buckets=1, options=options)


def test_a_row_whose_time_was_up_does_not_come_back(timed):
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


def test_rows_are_not_judged_by_a_time_that_may_be_taken_back(timed):
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


def test_what_is_not_committed_holds_the_log(rack):
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


def test_an_owner_that_holds_too_much_log_is_undone_and_evicted(folder):
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


def test_what_cannot_be_undone_is_said_and_kept_by_choice(rack):
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


def test_without_undo_nothing_is_taken_back_and_no_delete_is_let_in(t):
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
def test_without_undo_is_not_for_functions_that_a_replay_changes(t, column):
    """H33: sums, lists and last values are taken back, or not at all."""
    with pytest.raises(InvalidArgument, match="undo"):
        t.begin(columns=[column], undo="none")


def test_without_undo_holds_no_log(rack):
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
