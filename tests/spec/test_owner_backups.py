"""Copies of tables in which owners write: readers of snapshots follow what is taken back, and what a backup becomes can
be taken back too."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.spec.owned import TTL, backed_up, open_rack, restoring
from tests.spec.replica import Replica, by_key

import kolk
from kolk.engine.taking import Taking
from kolk.errors import ColumnLockConflict, OwnerRolledBack, UndoImpossible
from kolk.model.ids import UndoTag

KEYS = range(8)


def every(keys=KEYS, **values):
    return {key: values for key in keys}


def listed(**values):
    return [{"k": key, **values} for key in KEYS]


@pytest.fixture
def rack(folder):
    with open_rack(folder, log_segment_bytes=1) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def restored(tmp_path):
    with restoring(tmp_path) as make:
        yield make


# --- readers of snapshots


def followed(table, offsets, replica):
    replica.go_on(offsets)
    for batch in table.changelog(start=offsets):
        replica.apply(batch)
    assert replica.wrong == []
    return replica.rows


@pytest.mark.parametrize("source", ["lease", "snapshot", "live"])
def test_a_reader_that_begins_with_a_copy_sees_what_is_not_committed_and_then_how_it_is_taken_back(t, source):
    """A full start and the changelog after it: nothing is hidden, and what is left is what the table has."""
    t.put(listed(pv=1, title="x"), columns=["pv", "title"])
    a = t.begin()
    a.put(every(range(12), pv=10), 0)
    a.delete([3], 0)
    replica = Replica(["k"])
    with t.table.lease() as lease:
        scan = replica.load(t.table, source=lease if source == "lease" else source)
    assert {row["pv"] for row in replica.rows.values()} == {None, 10, 11}
    b = t.begin()
    b.put(every(pv=100), 0)

    rows = followed(t.table, scan.offsets, replica)

    assert rows == by_key(t.table, t.table.scan().to_arrow())
    assert t.rows() == every(pv=101, title="x")


def test_a_leased_copy_holds_the_log_beside_what_an_undo_needs(t):
    """The log goes back as far as either of them: the lease to its offset, the undo to the first put."""
    t.table.set_options({"table.log.ttl": "1s"})
    a = t.begin()
    a.put(every(pv=1), 0)
    a.commit(0)
    a.put(every(pv=10), 1)
    replica = Replica(["k"])
    with t.table.lease(ttl="1d") as lease:
        scan = replica.load(t.table, source=lease)
        for _ in range(3):
            t.put(listed(title="x"), columns=["title"])
            aged(t)
        t.begin()
        for _ in range(3):
            t.put(listed(title="y"), columns=["title"])
            aged(t)
        rows = followed(t.table, scan.offsets, replica)

    assert rows == by_key(t.table, t.table.scan().to_arrow())
    assert t.rows() == every(pv=1, title="y")


def aged(t):
    """A snapshot is taken, time passes, and the log is trimmed."""
    t.rack.clock.advance(seconds=700)
    t.engine.take_due()
    t.engine.tick()


def test_a_bucket_that_comes_back_from_its_snapshot_is_taken_back(t):
    """A KV that is lost is no loss: what an owner has in a bucket is in its snapshots, and the log from there on."""
    t.table.set_options({"table.log.ttl": "1s"})
    t.put(listed(pv=1), columns=["pv"])
    t.begin().put(every(pv=9))
    for _ in range(3):
        t.put(listed(title="x"), columns=["title"])
        aged(t)
    assert all(bounds["start"] > 0 for bounds in t.table.describe()["offsets"].values())
    t.rack.close()
    for kv in (t.engine.path / "tables").rglob("kv"):
        shutil.rmtree(kv)
    t.rack.reopen()

    t.begin()

    assert t.rows() == every(pv=1, title="x")


# --- what is not committed at a backup


def test_what_was_not_committed_at_a_backup_is_taken_back_after_it(t, restored):
    t.put(listed(title="x"), columns=["title"])
    a = t.begin()
    a.put(every(pv=1), 0)
    a.commit(0, state=b"at 0")
    a.put(every(range(12), pv=10), 1)
    a.delete([3], 1)
    t.put(listed(title="y"), columns=["title"])

    again = restored(t.rack)
    assert again.rows()[0] == {"pv": 11, "title": "y"}
    b = again.begin()

    assert again.rows() == every(pv=1, title="y")
    assert (b.record.committed, b.record.state) == (0, b"at 0")
    b.put(every(pv=10), 1)
    b.commit(1)
    assert again.rows() == every(pv=11, title="y")


def test_a_copy_has_no_more_log_than_an_undo_needs(t, restored):
    a = t.begin()
    for epoch in range(3):
        a.put(every(pv=1), epoch)
        a.commit(epoch)
    clean = restored(t.rack)
    a.put(every(pv=1), 3)

    dirty = restored(t.rack, backed_up(t.rack, "again"))

    ends = {name: bounds["end"] for name, bounds in t.table.describe()["offsets"].items()}
    offsets = clean.table.describe()["offsets"]
    assert all(bounds["start"] == bounds["end"] for bounds in offsets.values())
    offsets = dirty.table.describe()["offsets"]
    assert {name: bounds["end"] for name, bounds in offsets.items()} == ends
    assert all(0 < bounds["start"] < bounds["end"] for bounds in offsets.values())


def test_what_was_never_committed_is_taken_back_to_nothing(t, restored):
    """The log of such an owner goes back to its first put."""
    t.put(listed(pv=1), columns=["pv"])
    t.begin().put(every(range(20), pv=9), 5)

    again = restored(t.rack)
    again.begin()

    assert again.rows() == every(pv=1)


def test_partitions_are_taken_back_each(rack, restored):
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("k", "int"), kolk.Column("a", "int")], ["day", "k"])
    t = rack.create(schema=schema, partition_by=["day"], buckets=2)
    w = t.table.writer("a", ["a"])
    w.put([{"day": key % 2, "k": key, "a": 1} for key in KEYS])
    w.commit()
    w.put([{"day": key % 3, "k": key, "a": 9} for key in KEYS])

    again = restored(rack)
    again.begin(columns=["a"])

    assert again.rows() == {key: {"day": key % 2, "a": 1} for key in KEYS}


def test_nobody_has_the_columns_before_that(t, restored):
    t.begin().put(every(pv=1))

    again = restored(t.rack)

    with pytest.raises(ColumnLockConflict):
        again.put(listed(pv=1), columns=["pv"])
    with pytest.raises(ColumnLockConflict):
        again.table.truncate()
    with pytest.raises(ColumnLockConflict):
        again.begin("b")
    again.rack.clock.advance(seconds=TTL)
    again.begin("b").put(every(pv=5))
    assert again.rows() == every(pv=5)
    with pytest.raises(OwnerRolledBack):
        again.begin(resume_epoch=0)


def test_a_backup_of_a_restored_database_can_be_taken_back_too(t, restored):
    a = t.begin()
    a.put(every(pv=1), 0)
    a.commit(0)
    a.put(every(pv=9), 1)
    first = restored(t.rack)

    again = restored(first.rack, backed_up(first.rack, "again"))
    again.begin()

    assert again.rows() == every(pv=1)


def test_a_log_that_a_restored_undo_needs_is_kept_until_then(t, restored):
    """The floor of the log is that of any owner who has not committed."""
    t.table.set_options({"table.log.ttl": "1s"})
    t.begin().put(every(pv=1))
    again = restored(t.rack)
    for _ in range(3):
        again.put(listed(title="x"), columns=["title"])
        aged(again)

    again.begin()

    assert again.rows() == every(title="x")


def test_a_table_that_was_altered_since_is_taken_back_as_it_is_now(t, restored):
    """The frames of an owner are of a version of the schema, which the copy has. A column that was dropped, and made
    again under its name, is another one."""
    t.put(listed(title="x"), columns=["title"])
    t.begin(columns=["pv", "top"]).put(every(range(12), pv=1, top=1))
    t.table.drop_column("pv")
    t.table.rename_column("top", "peak")
    t.table.alter([kolk.AddColumn(kolk.Column("pv", "bigint", agg="sum"))])
    t.put(listed(pv=7), columns=["pv"])

    again = restored(t.rack)
    again.begin(columns=["peak"])

    assert again.rows() == every(pv=7, title="x")


def test_undo_stays_impossible_in_the_copy_of_what_could_not_be_undone(rack, restored):
    """A backup is made all the same, and is no worse."""
    t = rack.create(buckets=1)
    t.begin().put(every(pv=1))
    t.put([{"k": 99, "title": "x"}], columns=["title"])
    t.table.take_snapshot()
    info = t.table.info
    with t.engine._tablets.use_one(info, info.bucket_ids[0]) as tablet:
        tablet.log.trim(tablet.end)  # as no retention would

    again = restored(rack)

    with pytest.raises(UndoImpossible):
        again.begin()
    assert again.rack.db.release_lock("t", "a", keep=True)
    assert again.rows()[1] == {"pv": 1}


# --- the moment


def test_what_is_committed_is_what_was_so_when_the_rows_were_taken(t, restored, monkeypatch):
    """Commits while a backup is made: those before the moment of the rows stand, with all of their rows; later ones
    never were."""
    a = t.begin()
    a.put(every(pv=1), 0)
    a.commit(0)
    a.put(every(pv=10), 1)
    checkpoint, taken = Taking._checkpoint, []

    def before_and_after(taking, tablets, *rest):
        if not taken:
            a.commit(1, state=b"before")
            a.put(every(pv=100), 2)
        found = checkpoint(taking, tablets, *rest)
        if not taken:
            a.put(every(pv=1000), 3)
            a.commit(2, seqs={bucket: 3 for bucket in "01"}, state=b"after")
        taken.append(True)
        return found

    monkeypatch.setattr(Taking, "_checkpoint", before_and_after)
    again = restored(t.rack)
    b = again.begin()

    assert (b.record.committed, b.record.state) == (1, b"before")
    assert again.rows() == every(pv=11)


def test_a_mark_that_takes_no_offset_is_in_the_copy(t, restored):
    """H30: an undo that changed no row leaves a mark alone, after a snapshot that has the same rows. A copy of that
    one would take fence 1's epoch 6 back once more, and with it what fence 2 has committed."""
    t.put(listed(pv=1), columns=["pv"])
    one = t.begin()
    one.put(every(pv=1), 5)
    one.put(every(pv=-1), 6)
    t.table.take_snapshot()
    two = t.begin()
    assert isinstance(t.frames()[-1], UndoTag)
    two.commit(5)

    again = restored(t.rack)
    again.begin()

    assert again.rows() == every(pv=1)


def test_a_backup_in_the_middle_of_an_undo_is_taken_back_to_its_end(t, restored):
    """Some buckets have their mark by then, others do not."""
    t.put(listed(pv=1), columns=["pv"])
    t.begin().put(every(pv=9))
    made = []

    def backup(done, all):
        if done == 1:
            made.append(backed_up(t.rack))

    t.begin(on_progress=backup)
    again = restored(t.rack, made[0])
    assert sorted({row["pv"] for row in again.rows().values()}) == [1, 10]
    again.begin()

    assert again.rows() == every(pv=1)


def test_an_owner_that_came_after_the_backup_began_is_in_the_copy_of_its_table(t, restored, monkeypatch):
    """Its frames are in the rows, so its name is beside them."""
    cuts = t.engine.backups._cuts
    begun = cuts.begun

    def begun_and_then():
        found = begun()
        t.begin("late").put(every(pv=1))
        return found

    monkeypatch.setattr(cuts, "begun", begun_and_then)
    again = restored(t.rack)
    assert set(again.locks()) == {"late"}
    again.begin("late")

    assert again.rows() == {}


def test_a_table_that_is_taken_in_groups_can_be_taken_back(rack, restored, monkeypatch):
    """Each bucket has the log that it needs; as nothing was written meanwhile it is of one moment after all."""
    for module in ("taking", "backup_cut"):
        monkeypatch.setattr(f"kolk.engine.{module}.CUT_BUCKETS_MAX", 2)
    t = rack.create(buckets=5)
    t.put(listed(pv=1), columns=["pv"])
    t.begin().put(every(range(40), pv=9))
    info = rack.db.backup(rack.engine.path.with_name("backup"))

    again = restored(rack, Path(info.path))
    again.begin()

    assert info.mixed == ()
    assert again.rows() == every(pv=1)


@pytest.mark.parametrize("at_once", [256, 1])
def test_every_copy_that_is_made_beside_a_writer_is_of_one_of_its_commits(t, restored, monkeypatch, at_once):
    """Whatever goes on meanwhile, puts, commits, or a begin that takes back: every epoch adds one to every row. Also if
    its buckets are too many to be taken at once."""
    for module in ("taking", "backup_cut"):
        monkeypatch.setattr(f"kolk.engine.{module}.CUT_BUCKETS_MAX", at_once)
    stop, states = threading.Event(), []

    def write():
        grip, begun = t.begin(), 0
        while not stop.is_set():
            first = grip.record.committed + 1
            for epoch in range(first, first + 3):
                grip.put(every(pv=1), epoch)
                grip.put(every(pv=0), epoch)
                grip.commit(epoch, state=str(epoch).encode())
            grip.put(every(pv=7), first + 3)
            grip, begun = t.begin(), begun + 1
        return begun

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for number in range(4):
                again = restored(t.rack, backed_up(t.rack, f"backup-{number}"))
                record = again.begin().record
                states.append((record.committed, record.state.decode(), again.rows()))
        finally:
            stop.set()

    assert writing.result() > 0
    for committed, state, rows in states:
        assert rows == (every(pv=committed + 1) if committed >= 0 else {})
        assert state == (str(committed) if committed >= 0 else "")
