"""Owners on a disk that fails: what stops, what goes on, and what nobody may take for done."""

import errno
from contextlib import contextmanager

import pytest
from tests.spec.owned import TTL, Rack

import kolk
from kolk.engine.database import Engine
from kolk.errors import ColumnLockConflict, CommitMismatch, DiskFull, Fenced, KolkError, OwnerRolledBack
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.faults import Call, FailingDisk

KEYS = range(8)


class FaultyRack(Rack):
    """A ``Rack`` on a disk that fails when it is told to."""

    def __init__(self, folder, **settings):
        self.disk = FailingDisk()
        super().__init__(folder, **settings)

    def _open(self):
        config = kolk.EngineConfig(**self._settings)
        self.engine = Engine(Folder(self._folder), config, clock=self.clock, disk=self.disk)
        self.db = kolk.Database(self.engine, lambda: None, Rng(), clock=self.clock)


@pytest.fixture
def rack(folder):
    rack = FaultyRack(folder, log_segment_bytes=1, durability="machine")
    yield rack
    rack.close()


def every(**values):
    return {key: values for key in KEYS}


def test_h36_a_bucket_that_has_stopped_keeps_nobody_from_trimming_the_others(rack):
    """What its owner holds in it is not known; the round goes on with what is."""
    options = {"table.log.ttl": "1s"}
    broken, other = rack.create("broken", options=options), rack.create("other", options=options)
    for each in (broken, other):
        a = each.begin(ttl=86_400.0)
        a.put(every(pv=1))
        a.commit()
        each.put([{"k": key, "title": "x"} for key in KEYS], columns=["title"])
    for _ in range(2):
        rack.clock.advance(seconds=700)
        rack.engine.take_due()
    rack.disk.fail_always(Call.SYNC, errno.EIO, within="/1/0/1/log")
    with pytest.raises(KolkError):
        broken.put([{"k": key, "title": "x"} for key in KEYS], columns=["title"])
    rack.disk.heal()

    rack.engine.tick()

    starts = [each["start"] for each in other.table.describe()["offsets"].values()]
    assert all(starts)


def test_h23_a_bucket_that_has_stopped_keeps_the_columns_and_nobody_from_other_ones(rack):
    """Whether an owner whose time is up has left anything in it nobody knows: its columns wait, the table does not."""
    t = rack.create("t")
    keys = t.a_key_of_each_bucket()
    a = t.begin()
    a.put(every(pv=1))
    a.commit()
    rack.disk.fail_always(Call.SYNC, errno.EIO, within="/1/0/1/log")
    with pytest.raises(KolkError):
        a.put({keys[1]: {"pv": 1}}, 1)
    rack.disk.heal()
    rack.clock.advance(seconds=TTL)

    t.put([{"k": keys[0], "title": "x"}], columns=["title"])
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": keys[0], "pv": 1}], columns=["pv"])
    rack.reopen()
    t.begin()

    t.check(every(pv=1) | {keys[0]: {"pv": 1, "title": "x"}})


@contextmanager
def broken_off(rack):
    """The disk is full for one of the two buckets while something is taken back, so it ends in the middle."""
    rack.disk.fail_always(Call.WRITE, errno.ENOSPC, within="/1/0/1/log")
    with pytest.raises(DiskFull):
        yield
    rack.disk.heal()


def half_written(rack):
    """A table whose owner has committed an epoch, and written another one to both buckets; its time is up."""
    t = rack.create()
    a = t.begin()
    a.put(every(pv=1))
    a.commit()
    a.put(every(pv=10), 1)
    return t, a


def test_h23_h24_an_eviction_that_was_broken_off_is_told_to_who_resumes(rack):
    """One bucket is taken back and the other is not: the epoch must not be taken for whole."""
    t, _ = half_written(rack)
    rack.clock.advance(seconds=TTL)
    with broken_off(rack):
        t.begin("b")

    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=1)
    rack.reopen()
    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=1)

    assert t.begin().record.committed == 0
    t.check(every(pv=1))


def test_h23_after_a_restart_nobody_waits_for_an_owner_whose_eviction_was_broken_off(rack):
    """A restart gives owners one more time, but not one whose fence nobody has."""
    t, _ = half_written(rack)
    rack.clock.advance(seconds=TTL)
    with broken_off(rack):
        t.begin("b")
    rack.reopen()

    t.begin("b")

    t.check(every(pv=1))


@pytest.mark.parametrize("by", ["another owner", "itself"])
def test_h34_after_a_restart_no_task_goes_on_in_a_run_that_was_half_taken_back(rack, by):
    """What is left of its rows would be kept when it writes them again."""
    t = rack.create()
    before = t.begin()
    before.put(every(pv=1))
    before.commit()
    a = t.begin(attempt="run")
    a.put(every(pv=10), 1)
    rack.clock.advance(seconds=TTL if by == "another owner" else 0)
    with broken_off(rack):
        t.begin("b") if by == "another owner" else a.rest()
    rack.reopen()

    with pytest.raises(Fenced):
        t.begin(attempt="run")

    t.begin(attempt="next")
    t.check(every(pv=1))


def test_h23_an_owner_that_was_taken_back_is_not_forgotten_before_it_has_begun_again(rack, monkeypatch):
    """It comes back, and the last write of that fails: it still does not know."""
    t, _ = half_written(rack)
    rack.clock.advance(seconds=TTL)
    t.begin("b").rest()
    owners, left = rack.engine.owners, [None]
    store = owners.store

    def failing(record):
        if not left:
            raise DiskFull("as told")
        left.pop()
        store(record)

    with monkeypatch.context() as patched:
        patched.setattr(owners, "store", failing)
        with pytest.raises(DiskFull):
            t.begin()
    rack.clock.advance(seconds=TTL)
    t.put([{"k": 0, "pv": 0}], columns=["pv"])  # which its columns are free for

    rack.clock.advance(seconds=400 * 86_400)
    rack.engine.reap()

    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=1)


def test_h24_a_begin_that_was_broken_off_is_told_to_who_resumes(rack):
    """It had begun to take the epoch back that somebody takes for finished later."""
    t, _ = half_written(rack)
    with broken_off(rack):
        t.begin()

    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=1)

    t.begin()
    t.check(every(pv=1))


def test_h24_a_resumption_that_was_broken_off_can_be_made_again(rack):
    """What is taken back is only what came after the epoch that it resumes at."""
    t, a = half_written(rack)
    a.put(every(pv=100), 2)
    with broken_off(rack):
        t.begin(resume_epoch=1)

    assert t.begin(resume_epoch=1).record.committed == 1
    t.check(every(pv=11))


def test_h23_a_leaving_that_was_broken_off_is_finished_when_it_is_tried_again(rack):
    """A client that tries again by itself has the fence that it had."""
    t, a = half_written(rack)
    for _ in range(2):
        with broken_off(rack):
            a.rest()

    a.rest()

    t.check(every(pv=1))
    assert not rack.db.locks()
    t.put([{"k": 0, "pv": 1}], columns=["pv"])
    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=1)


def test_h23_a_writer_whose_end_failed_can_be_closed_again(rack):
    t = rack.create()
    w = t.table.writer("a", ["pv"])
    w.put([{"k": key, "pv": 1} for key in KEYS])
    with broken_off(rack):
        w.close()

    w.close()
    w.close()

    t.check({})
    assert not rack.db.locks()


def test_h20_a_writer_before_a_broken_begin_does_not_release_what_was_committed(rack):
    """Its successor has the next fence, though nobody was told: forgotten, what it has committed would count twice."""
    t, old = half_written(rack)
    with broken_off(rack):
        t.begin()

    assert not t.service.release_owner(t.table.info.id, "a", old.record.fence)

    assert t.begin().record.committed == 0


@pytest.mark.parametrize("since", ["nothing", "a restart", "a restart and a put"])
def test_h34_an_attempt_that_was_half_taken_back_is_not_committed(rack, since):
    """A copy began in its place, took back some of its rows, and died."""
    t = rack.create(buckets=1)
    z = t.begin()
    z.put({1: {"pv": 10}})
    z.commit()
    a = t.begin(attempt="run")
    one = a.begin_task(1, 0)
    a.put({1: {"pv": 1}, 2: {"pv": 5}}, 1, seq=1, ticket=one.ticket)
    two = a.begin_task(1, 0)
    rack.disk.fail_next(Call.WRITE, errno.ENOSPC, after=1, within="/log/")
    with pytest.raises(DiskFull):
        a.put({1: {"pv": 1}}, 1, seq=1, ticket=two.ticket)
    rack.disk.heal()
    last = 1
    if "restart" in since:
        rack.reopen()
    if "put" in since:  # after a restart nobody knows that there was a copy
        last = 2
        a.put({3: {"pv": 1}}, 1, seq=last, ticket=one.ticket)

    with pytest.raises(CommitMismatch):
        a.commit_tasks(1, {"0": (one.ticket, last)}, unsealed=True)

    t.begin()
    t.check({1: {"pv": 10}})
