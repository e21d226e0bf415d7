"""A backup step by step: who goes on with it, what happens in between, and what is left when it ends early."""

import errno
import os
import threading
from contextlib import closing

import pytest

import kolk
from kolk.engine.backup import IDLE_SECONDS, STEP_SECONDS
from kolk.engine.database import Engine
from kolk.engine.restore import restore
from kolk.errors import Busy, Closed, DiskFull, FollowerTaken, LeaseLost, PartialPut, Stopped
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock
from kolk.testing.faults import Call, FailingDisk

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")
HITS = kolk.Schema([kolk.Column("day", "string"), kolk.Column("id", "bigint")], ["day", "id"])
EVENTS = kolk.Schema([kolk.Column("n", "bigint")])


class HastyClock(ManualClock):
    """A clock on which every look takes as long as a step may, so that a step is as small as it can be."""

    def monotonic(self):
        self.advance(seconds=STEP_SECONDS)
        return super().monotonic()


class Bench:
    """A database whose backups go on by hand."""

    def __init__(self, folder, clock):
        self.disk = FailingDisk()
        self.clock = clock
        self.folder = folder / "data"
        self.target = folder / "b"
        config = kolk.EngineConfig(durability="process", log_segment_bytes=1)
        self.engine = Engine(Folder(self.folder), config, clock=clock, disk=self.disk)
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=clock)

    def step(self, nonce="n", target=None):
        return self.engine.backup(str(target or self.target), nonce)

    def finish(self, nonce="n"):
        """Go on to the end; the answer is how it was on the way."""
        states = [self.step(nonce)]
        while states[-1].info is None:
            states.append(self.step(nonce))
        return states

    def until_copied(self):
        """Go on until something was copied."""
        while not self.step().done_bytes:
            pass

    @property
    def leftovers(self):
        """What is left of a backup that ended early."""
        there = list(self.target.rglob("*")) if self.target.exists() else []
        return [*there, *(self.folder / "checkpoints").iterdir(), *self.db.leases()]


@pytest.fixture
def made():
    opened = []
    yield opened
    for each in opened:
        each.db.close()


@pytest.fixture
def bench(tmp_path, made):
    """With two tables: rows in two buckets, and events."""
    made.append(Bench(tmp_path, HastyClock()))
    bench = made[0]
    bench.db.create_table("rows", SCHEMA, buckets=2).put([{"id": n, "v": str(n)} for n in range(100)])
    events = bench.db.create_table("events", EVENTS)
    for n in range(3):
        events.put([{"n": n}])
    return bench


@pytest.fixture
def reopened(tmp_path):
    """The database that is made of the bench's backup."""
    opened = []

    def make(bench):
        restore(bench.target, tmp_path / "restored")
        opened.append(kolk.connect(tmp_path / "restored", config=kolk.EngineConfig(durability="process")))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def numbers(table):
    return sorted(row["n"] for batch in table.changelog() for row in batch.to_pylist())


def test_it_goes_on_step_by_step_and_tells_how_far_it_is(bench):
    states = bench.finish()

    assert len(states) > 10
    assert [state.done_bytes for state in states] == sorted(state.done_bytes for state in states)
    assert states[0].total_bytes == 0
    assert 0 < states[-2].done_bytes <= states[-2].total_bytes == states[-1].done_bytes
    assert states[-1].info.tables == 2
    assert bench.db.leases() == []
    assert list((bench.folder / "checkpoints").iterdir()) == []


def test_it_is_held_by_one_lease_on_all_tables(bench):
    bench.db.create_table("more", SCHEMA).put([{"id": 1, "v": ""}])

    bench.until_copied()

    (lease,) = bench.db.leases()
    assert (lease.tables, lease.pins) == (("more", "rows"), 3)
    bench.finish()
    assert bench.db.leases() == []


def test_whoever_asks_again_after_its_end_is_answered_alike(bench):
    info = bench.finish()[-1].info

    again = bench.step()

    assert again.info == info
    assert again.done_bytes == again.total_bytes


def test_one_is_made_at_a_time(bench, tmp_path):
    bench.step()

    with pytest.raises(Busy, match="one at a time"):
        bench.step("other", tmp_path / "c")

    bench.finish()
    assert bench.step("other", tmp_path / "c").info is None


def test_one_that_is_cancelled_leaves_nothing(bench):
    bench.until_copied()
    assert bench.leftovers

    bench.engine.cancel_backup("somebody else's")
    assert bench.leftovers
    bench.engine.cancel_backup("n")

    assert bench.leftovers == []
    assert not bench.target.exists()
    bench.engine.cancel_backup("n")
    assert bench.finish("again")[-1].info is not None


def test_one_that_nobody_goes_on_with_is_given_up(bench):
    bench.until_copied()

    bench.engine.reap()
    assert bench.leftovers
    bench.clock.advance(seconds=IDLE_SECONDS)
    bench.engine.reap()

    assert bench.leftovers == []


def test_an_empty_folder_that_was_there_stays(bench):
    bench.target.mkdir()
    bench.until_copied()

    bench.engine.cancel_backup("n")

    assert list(bench.target.iterdir()) == []


def test_one_that_the_database_is_closed_under_leaves_nothing(bench):
    bench.until_copied()

    bench.db.close()

    assert not bench.target.exists()
    with pytest.raises(Closed):
        bench.step()


def test_a_forked_child_takes_nothing_away_from_the_one_that_makes_it(bench):
    bench.until_copied()
    child = os.fork()
    if not child:
        try:
            bench.engine.backups._job.steps.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert len(bench.db.leases()) == 1
    assert bench.finish()[-1].info is not None


def test_what_a_bucket_says_of_itself_stays_what_it_was(bench):
    bench.disk.fail_next(Call.SYNC_FOLDER, errno.EIO, after=1, within="log")  # the first is that of an index
    events = bench.db.table("events")
    with pytest.raises(PartialPut):
        events.put([{"n": 7}])

    with bench.engine._tablets.use_one(events.info, events.info.bucket_ids[0]) as tablet:
        refusal = tablet.refusal
        before = str(refusal)
        with pytest.raises(Stopped):
            bench.finish()

    assert str(refusal) == before


def test_a_lease_that_an_operator_drops_ends_it(bench):
    bench.until_copied()
    (lease,) = bench.db.leases()

    bench.db.drop_lease(lease.id)
    bench.clock.advance(seconds=360)

    with pytest.raises(LeaseLost, match="there is no backup"):
        bench.finish()
    assert bench.leftovers == []


def test_snapshots_that_go_with_their_lease_are_not_called_damaged(bench):
    bench.until_copied()
    (lease,) = bench.db.leases()

    bench.db.drop_lease(lease.id)
    for n in range(3):
        bench.db.table("rows").put([{"id": id, "v": str(n)} for id in range(100)])
        bench.db.table("rows").take_snapshot()

    with pytest.raises(LeaseLost):
        bench.finish()
    assert bench.leftovers == []


def test_what_is_trimmed_or_truncated_meanwhile_is_in_it_all_the_same(bench, reopened):
    events = bench.db.table("events")
    bench.until_copied()

    events.truncate()
    events.put([{"n": 99}])
    bench.finish()

    assert numbers(events) == [99]
    assert numbers(reopened(bench).table("events")) == [0, 1, 2]


def test_what_is_written_meanwhile_is_not_in_it(bench, reopened):
    bench.until_copied()

    bench.db.table("rows").put([{"id": 1, "v": "later"}, {"id": 1_000, "v": "later"}])
    bench.db.table("events").put([{"n": 99}])
    bench.db.table("rows").take_snapshot()
    bench.finish()

    there = reopened(bench)
    assert there.table("rows").get_one(id=1) == {"id": 1, "v": "1"}
    assert there.table("rows").get_one(id=1_000) is None
    assert numbers(there.table("events")) == [0, 1, 2]


@pytest.mark.parametrize("steps", range(0, 24, 3))
def test_it_is_begun_anew_when_tables_and_partitions_come_and_go(bench, reopened, steps):
    hits = bench.db.create_table("hits", HITS, partition_by=["day"])
    hits.put([{"day": "1", "id": 1}, {"day": "2", "id": 2}])
    for _ in range(steps):
        bench.step()

    bench.db.drop_table("rows")
    bench.db.create_table("rows", SCHEMA).put([{"id": 7, "v": "new"}])
    hits.drop_partition("day=1")
    hits.put([{"day": "3", "id": 3}])
    bench.db.table("events").put([{"n": 99}])
    info = bench.finish()[-1].info

    there = reopened(bench)
    rows, found = there.table("rows"), there.table("hits")
    is_anew = rows.info.spec.buckets == 1
    partitions = [partition.name for partition in found.partitions()]
    assert info.tables == 3
    assert sorted(found.scan().to_arrow()["day"].to_pylist()) == (["2", "3"] if is_anew else ["1", "2"])
    assert partitions == (["day=2", "day=3"] if is_anew else ["day=1", "day=2"])
    assert rows.scan().to_arrow().num_rows == (1 if is_anew else 100)
    assert there.status()["snapshots"]["broken"] == 0


def test_it_ends_if_that_never_ends(bench):
    def churn():
        for n in range(1_000):
            bench.step()
            bench.db.create_table(f"t{n}", EVENTS)

    with pytest.raises(Busy, match="came and went"):
        churn()

    assert bench.leftovers == []


def test_an_alter_meanwhile_is_all_in_it_or_not_at_all(bench, reopened):
    bench.step()

    bench.db.table("rows").add_column("w", "string")
    bench.finish()

    again = reopened(bench).table("rows")
    assert again.schema.id == 2
    assert again.get_one(id=1) == {"id": 1, "v": "1", "w": None}


@pytest.mark.parametrize("call", [Call.WRITE, Call.CREATE])
@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_a_full_disk_ends_it_and_nothing_is_left(bench, call, after):
    bench.disk.fail_next(call, errno.ENOSPC, after=after, within=str(bench.target))

    with pytest.raises(DiskFull, match="there is no backup") as told:
        bench.finish()

    assert not told.value.retriable  # by itself: it would copy everything again and again
    assert bench.leftovers == []
    assert bench.db.table("rows").put([{"id": 1, "v": "goes on"}]).offsets
    assert bench.finish("again")[-1].info is not None


def test_a_sync_that_fails_ends_it(bench):
    bench.disk.fail_next(Call.SYNC, errno.EIO, within=str(bench.target))

    with pytest.raises(Stopped, match="there is no backup"):
        bench.finish()

    assert bench.leftovers == []


def restored_twice(bench):
    """Two engines of databases that are made of the bench's backup."""
    for name in ("one", "other"):
        folder = bench.target.with_name(name)
        restore(bench.target, folder)
        with closing(Engine(Folder(folder), kolk.EngineConfig(durability="process"), clock=bench.clock)) as engine:
            yield engine


def test_nobody_who_read_for_a_follower_before_a_restore_commits_in_the_copy(bench):
    """Nor who began after the backup, nor in the other of two databases of one backup: no epoch is given twice."""
    table = bench.db.table("events").info.id
    before = [bench.engine.open_follower(table, name, 1) for name in ("f", "g")]
    bench.finish()
    later = [bench.engine.open_follower(table, name, 2) for name in ("f", "g", "h")]
    epochs = {session.epoch for session in (*before, *later)}

    for engine in restored_twice(bench):
        for session in (*before, *later):
            with pytest.raises(FollowerTaken):
                engine.commit_follower(table, "f", session.epoch, {"0": 3})
        opened = [engine.open_follower(table, name, reader) for name, reader in (("f", 1), ("g", 3), ("h", 3))]
        for session in (*before, *later):
            with pytest.raises(FollowerTaken):
                engine.commit_follower(table, "f", session.epoch, {"0": 3})
        engine.commit_follower(table, "f", opened[0].epoch, {"0": 2})
        assert engine.open_follower(table, "f", 4).offsets == {"0": 2}
        assert epochs.isdisjoint(session.epoch for session in opened)
        epochs |= {session.epoch for session in opened}
    assert len(epochs) == 11


def test_the_first_epoch_of_all_is_not_given_twice(bench):
    bench.finish()
    table = bench.db.table("events").info.id
    later = bench.engine.open_follower(table, "f", 1)

    for engine in restored_twice(bench):
        assert engine.open_follower(table, "f", 2).epoch != later.epoch


def test_a_close_waits_for_the_step_of_another_thread(tmp_path, made):
    made.append(Bench(tmp_path, ManualClock()))
    bench = made[0]
    bench.db.create_table("rows", SCHEMA).put([{"id": n, "v": "v" * 1_000} for n in range(1_000)])
    begun, ended = threading.Event(), []

    class Told(ManualClock):
        def monotonic(self):
            begun.set()
            return super().monotonic()

    bench.engine.backups._clock = Told()

    def work():
        try:
            ended.append(bench.finish()[-1].info)
        except Exception as error:  # noqa: BLE001 - looked at below
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    bench.db.close()
    thread.join()

    (how,) = ended
    assert (bench.target / "BACKUP").exists() == isinstance(how, kolk.BackupInfo)
    assert bench.target.exists() == isinstance(how, kolk.BackupInfo)
