"""Owners on a disk that fails: what stops, what goes on, and what nobody may take for done."""

import errno

import pytest
from tests.spec.owned import TTL, Rack

import kolk
from kolk.engine.database import Engine
from kolk.errors import ColumnLockConflict, KolkError
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
