"""Owners that hold too much log, or never come back: they are taken back to their commits, and then let go."""

import errno
import logging

import pytest
from tests.spec.owned import TTL, open_rack

from kolk.errors import ColumnLockConflict, OwnerRolledBack
from kolk.model.ids import UndoTag
from kolk.testing.faults import Call, FailingDisk

KEYS = range(6)
DAY = 86_400
LIMIT = 6_000
"""More than two puts of one row each keep, and less than ten."""


def every(**values):
    return {key: values for key in KEYS}


def titled(t, times):
    for number in range(times):
        t.put([{"k": 0, "title": str(number)}], columns=["title"])


def aged(t):
    """Everything is in a snapshot, and has had its time."""
    t.rack.clock.advance(seconds=700)
    t.engine.take_due()


def bounds(t):
    return t.table.describe()["offsets"]["0"]


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
def rack(folder, disk):
    with open_rack(folder, disk=disk, log_segment_bytes=1, log_pinned_max_bytes=LIMIT) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=1, options={"table.log.ttl": "1s"})


# --- H36: log.pinned.max-bytes


def test_an_owner_that_holds_too_much_log_is_undone_and_evicted_before_the_log_goes(t):
    """H36: the hold is never dropped with the dirt left in, and not that of an owner who keeps little."""
    a = t.begin(ttl=DAY)
    a.put(every(pv=1))
    a.commit()
    needed = bounds(t)["end"]
    a.put(every(pv=5), 1)
    titled(t, 20)
    small = t.begin("small", ["top"], ttl=DAY)
    small_needs = bounds(t)["end"]
    small.put(every(top=9))
    aged(t)
    assert bounds(t)["start"] <= needed

    t.engine.tick()

    assert needed < bounds(t)["start"] <= small_needs
    assert UndoTag(a.record.number, a.record.fence + 1, done=True) in t.frames()
    assert t.rows() == every(pv=1, top=9) | {0: {"pv": 1, "top": 9, "title": "19"}}
    assert set(t.locks()) == {"small"}
    for call, *given in ((a.put, every(pv=5), 1), (a.commit, 1), (a.renew,)):
        with pytest.raises(OwnerRolledBack):
            call(*given)
    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=1)
    assert t.begin().record.committed == 0
    t.begin("small", ["top"])
    assert t.rows()[1] == {"pv": 1}


def test_an_owner_that_holds_less_than_may_be_kept_is_left_alone(t):
    """H36: and so is one who holds nothing that would go without it."""
    a = t.begin(ttl=DAY)
    a.put({1: {"pv": 5}})
    titled(t, 1)
    aged(t)

    t.engine.tick()

    assert bounds(t)["start"] == 0
    a.put({1: {"pv": 5}})
    a.commit()


def test_a_log_is_held_as_long_as_its_owner_cannot_be_taken_back_and_nobody_else_is_released_for_it(t, disk, caplog):
    """H36: the dirt stays, and so does the hold; those who keep little keep it. The next round tries again."""
    a = t.begin(ttl=DAY)
    a.put(every(pv=5))
    titled(t, 20)
    t.table.changelog(follower="f", start="latest").close()
    titled(t, 1)
    aged(t)
    disk.fail_always(Call.WRITE, errno.ENOSPC, within="/log")
    with caplog.at_level(logging.WARNING):
        t.engine.tick()
    disk.heal()

    assert "cannot be taken back" in caplog.text
    assert bounds(t)["start"] == 0
    assert t.rows()[1] == {"pv": 5}
    assert [follower.state for follower in t.rack.db.followers()] == ["live"]
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": 1, "pv": 1}], columns=["pv"])

    t.engine.tick()
    assert not t.locks()
    assert t.rows() == {0: {"title": "0"}}
    assert bounds(t)["start"] > 0
    assert [follower.state for follower in t.rack.db.followers()] == ["live"]


def test_a_restart_after_an_eviction_finds_it_done(t):
    """H36: the owner is told then, too."""
    a = t.begin(ttl=DAY)
    a.put(every(pv=5))
    titled(t, 20)
    aged(t)
    t.engine.tick()

    t.rack.reopen()

    assert not t.locks()
    assert t.rows() == {0: {"title": "19"}}
    with pytest.raises(OwnerRolledBack):
        a.put(every(pv=5))


# --- column-lock.abandon-after


@pytest.fixture
def hourly(folder, disk):
    with open_rack(folder, disk=disk, owner_abandon_seconds=3_600.0) as rack:
        yield rack.create(buckets=1)


def test_an_owner_is_abandoned_so_long_after_its_time_was_up(hourly):
    """The reaper: not before, and not one that lives; what is clean is let go, and what is dirty is evicted."""
    t = hourly
    t.begin("dirty").put(every(pv=1))
    clean = t.begin("clean", ["top"])
    clean.put(every(top=1))
    clean.commit()
    live = t.begin("live", ["note"], ttl=2 * DAY)
    t.rack.clock.advance(seconds=TTL + 3_599)
    t.engine.reap()
    assert set(t.locks()) == {"dirty", "clean", "live"}

    t.rack.clock.advance(seconds=1)
    t.engine.reap()

    assert set(t.locks()) == {"live"}
    assert t.rows() == every(top=1)
    t.put([{"k": 1, "pv": 7}], columns=["pv"])
    live.put({1: {"note": "n"}})
    with pytest.raises(OwnerRolledBack):
        t.begin("dirty", resume_epoch=0)
    assert t.begin("clean", ["top"], resume_epoch=0).record.committed == 0


def test_a_restart_gives_an_owner_its_time_again(hourly):
    """Nobody could renew while there was no server."""
    t = hourly
    t.begin().put(every(pv=1))
    t.rack.clock.advance(seconds=TTL + 3_599)
    t.rack.reopen()
    t.rack.clock.advance(seconds=TTL + 3_599)
    t.engine.reap()
    assert "a" in t.locks()

    t.rack.clock.advance(seconds=1)
    t.engine.reap()

    assert t.rows() == {}


def test_an_owner_that_cannot_be_taken_back_is_tried_again_after_as_long(hourly, disk, caplog):
    """It says so once each time, and does not keep the others from being taken back."""
    t = hourly
    other = t.rack.create("other", buckets=1)
    for each in (t, other):
        each.begin().put(every(pv=1))
    t.rack.clock.advance(seconds=TTL + 3_600)
    disk.fail_always(Call.WRITE, errno.ENOSPC, within=f"/{t.table.info.id}/0/0/log")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            t.engine.reap()
    disk.heal()

    assert caplog.text.count("is not taken back") == 1
    assert [each.rows() for each in (t, other)] == [every(pv=1), {}]
    t.rack.clock.advance(seconds=3_600)
    t.engine.reap()
    assert t.rows() == {}
