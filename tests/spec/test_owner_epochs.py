"""Epochs: what a commit lets stand, what a replay adds, and what a straggler, a zombie or another stream may not."""

import pytest
from tests.spec.owned import TTL

from kolk.errors import (
    ColumnLockConflict,
    CommitMismatch,
    CommitPointGone,
    EpochClosed,
    EpochOutOfOrder,
    Fenced,
    InvalidArgument,
    LockExpired,
    OwnerRolledBack,
    StreamChanged,
)

KEYS = range(8)


def every(**values):
    return {key: values for key in KEYS}


def test_h19_a_commit_is_one_record_for_all_buckets_and_those_to_come(t):
    """H19: the commit point is an epoch, not a set of offsets."""
    a = t.begin()
    a.put(every(pv=1))
    before = t.engine._meta.list("owner/")[0]
    a.commit()
    after = t.engine._meta.list("owner/")[0]
    t.begin()
    t.check(every(pv=1))
    a = t.begin()
    a.put({t.a_key_of_each_bucket()[0]: {"pv": 5}}, 1)

    t.begin()

    assert after.version == before.version + 1
    t.check(every(pv=1))


def test_h19_everything_is_undone_of_an_owner_that_died_before_its_first_commit(t):
    """H19: no offsets need be known for that; G10 of the field."""
    t.put([{"k": key, "pv": 7} for key in KEYS], columns=["pv"])
    t.begin().put(every(pv=1))

    t.begin()

    t.check(every(pv=7))


def test_h20_a_name_that_is_taken_again_does_not_undo_its_former_life(t):
    """H20: frames name the number of an owner, which is never used again."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.commit(5)
    a.release()
    t.put([{"k": 1, "pv": 1}], columns=["pv"])

    b = t.begin()
    b.put(every(pv=1), 0)
    t.begin()

    assert b.record.number > a.record.number
    t.check(every(pv=1) | {1: {"pv": 2}})


def test_h23_a_clean_owner_whose_time_is_up_is_in_nobodys_way(t):
    """H23: clean → free, and it may come back and go on."""
    a = t.begin("a")
    a.put(every(pv=1))
    a.commit()
    t.rack.clock.advance(seconds=TTL)

    t.put([{"k": 1, "pv": 10}], columns=["pv"])
    t.begin("b").put(every(pv=100), 3)
    t.service.release_owner(t.table.info.id, "b")
    again = t.begin("a", resume_epoch=0)
    again.put(every(pv=1), 0)
    again.put(every(pv=1), 1)

    t.check(every(pv=2) | {1: {"pv": 12}})


def test_h23_a_dirty_owner_whose_time_is_up_is_undone_before_another_has_its_columns(t):
    """H23: else it comes back and its undo wipes the new owner's values; it is told loudly, each time."""
    a = t.begin("a")
    a.put(every(pv=1))
    a.commit()
    a.put(every(pv=10), 1)
    t.rack.clock.advance(seconds=TTL)

    with pytest.raises(ColumnLockConflict, match="not committed"):
        t.put([{"k": 1, "pv": 1}], columns=["pv"])
    b = t.begin("b")
    b.put(every(pv=100))
    b.commit()
    for call in (a.renew, a.commit, lambda: a.put(every(pv=1), 1)):
        with pytest.raises(OwnerRolledBack):
            call()
    b.rest()
    for _ in range(2):
        with pytest.raises(OwnerRolledBack):
            t.begin("a", resume_epoch=1)
    t.begin("a", resume_epoch=0)

    t.check(every(pv=101))
    assert t.engine.owners.totals().evicted == 1


def test_h24_h28_a_refused_begin_has_changed_nothing(t):
    """H24, H28: who is refused has fenced nobody."""
    a = t.begin(stream="s")
    a.put(every(pv=1), 5)
    a.commit(5)
    a.put(every(pv=1), 6)

    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=4)
    with pytest.raises(StreamChanged):
        t.begin(stream="other")
    with pytest.raises(InvalidArgument):
        t.begin(columns=["top"], undo="none")

    a.put(every(pv=1), 6)
    a.commit(6)
    t.check(every(pv=3))


def test_h24_an_epoch_that_the_job_knows_as_done_is_kept(t):
    """H24: resume_epoch beyond the commit: the job finished it and died before it could say so."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.commit(5)
    a.put(every(pv=2), 6)
    a.put(every(pv=50), 7)

    b = t.begin(resume_epoch=6)
    b.put(every(pv=2), 6)

    assert b.record.committed == 6
    t.check(every(pv=3))


def test_h24_an_earlier_epoch_than_the_commit_cannot_be_gone_back_to(t):
    """H24: the commit point is gone."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.commit(5)

    with pytest.raises(CommitPointGone):
        t.begin(resume_epoch=3)


def test_h24_what_a_writer_took_back_when_it_closed_is_not_resumed_silently(t):
    """H24: the job took an epoch for finished that its own close has taken back."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.rest()

    with pytest.raises(OwnerRolledBack):
        t.begin(resume_epoch=5)
    t.check({})


def test_h35_a_job_over_two_tables_goes_on_at_the_greatest_of_its_commits(rack, t):
    """H35: written everywhere, then committed table by table; a crash between the commits loses nothing."""
    u = rack.create("u")
    one, two = t.begin(), u.begin()
    for each in (one, two):
        each.put(every(pv=1), 0)
    one.commit(0)

    greatest = max(-1 if lock.epoch is None else lock.epoch for lock in rack.db.locks())
    one, two = t.begin(resume_epoch=greatest), u.begin(resume_epoch=greatest)
    for each in (one, two):
        each.put(every(pv=100), greatest)
        each.put(every(pv=10), greatest + 1)
        each.commit(greatest + 1)

    t.check(every(pv=11))
    u.check(every(pv=11))


def test_h26_an_epoch_that_is_over_in_a_bucket_takes_no_more(t):
    """H26: a late write of e after e+1 would be lost by the undo of e+1."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.put(every(pv=1), 6)

    with pytest.raises(EpochOutOfOrder):
        a.put({1: {"pv": 1}}, 5)

    a.commit(5)
    t.begin()
    t.check(every(pv=1))


def test_h27_a_straggler_of_a_committed_epoch_is_refused_and_a_replay_is_dropped(t):
    """H27: the same fence is told; a newer one replays, which is acknowledged and not done."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.commit(5)
    with pytest.raises(EpochClosed):
        a.put(every(pv=1), 5)
    with pytest.raises(EpochClosed):
        a.put(every(pv=1), 3)

    b = t.begin()
    before = t.table.describe()["offsets"]
    b.put(every(pv=1), 5)
    assert t.table.describe()["offsets"] == before
    b.commit(5)
    b.put(every(pv=1), 6)
    b.commit(6)

    t.check(every(pv=2))


def test_h28_a_new_stream_is_not_taken_for_the_old_one(t):
    """H28: a new checkpoint restarts at batch 0, and all of it would be dropped."""
    a = t.begin(stream="query-1")
    a.put(every(pv=1), 100)
    a.commit(100)

    with pytest.raises(StreamChanged):
        t.begin(stream="query-2")
    b = t.begin(stream="query-2", reset=True)
    b.put(every(pv=1), 0)
    b.commit(0)

    assert b.record.number > a.record.number
    t.check(every(pv=2))


def test_a_commit_that_names_another_last_put_than_arrived_is_refused(t):
    """A put that failed in the background is noticed, in each direction."""
    a = t.begin()
    a.put(every(pv=1), 0, seq=1)
    a.put(every(pv=1), 0, seq=2)

    for seqs in ({"0": 2}, {"0": 1, "1": 2}, {}, {"0": 2, "1": 3}):
        with pytest.raises(CommitMismatch):
            a.commit(0, seqs)
    a.commit(0, {"0": 2, "1": 2})


def test_a_commit_of_an_epoch_without_rows_moves_the_state_alone(t):
    a = t.begin()
    a.commit(3, {}, b"offset 7")

    assert t.begin().record.state == b"offset 7"
    with pytest.raises(CommitMismatch):
        t.begin().commit(4, {"0": 1})


def test_a_repeated_commit_is_acknowledged(t):
    """The answer was lost; also after a restart, and by the next incarnation of a replayed batch."""
    a = t.begin()
    a.put(every(pv=1), 5)
    a.commit(5)
    a.commit(5)
    t.rack.reopen()
    a.commit(5)
    b = t.begin()
    b.put(every(pv=1), 5)
    b.commit(5)

    t.check(every(pv=1))


def test_a_commit_of_an_earlier_epoch_is_a_replay_or_a_mistake(t):
    """As for puts (H27): of a newer writer it is acknowledged, and the commit point and its state stay; the writer that
    has committed a later one is told."""
    a = t.begin()
    a.put(every(pv=1), 4)
    a.commit(4)
    a.put(every(pv=1), 5)
    a.commit(5, state=b"five")
    with pytest.raises(EpochClosed):
        a.commit(4)

    b = t.begin()
    b.put(every(pv=1), 4)
    b.commit(4, state=b"four")

    t.check(every(pv=2))
    c = t.begin()
    assert (c.record.committed, c.record.state) == (5, b"five")


def test_a_lapsed_lock_may_commit_if_nobody_took_over_and_not_if_somebody_did(t):
    a = t.begin()
    a.put(every(pv=1), 5)
    t.rack.clock.advance(seconds=TTL + 1)
    a.commit(5)
    t.begin("b")

    with pytest.raises(Fenced):
        a.commit(6)


def test_the_next_epoch_may_be_written_before_the_commit_of_the_last(t):
    """Without tickets: commits may lag behind."""
    a = t.begin()
    for epoch in range(3):
        a.put(every(pv=1), epoch)
    a.commit(0)
    a.commit(1)

    t.begin()

    t.check(every(pv=2))


def test_a_long_life_leaves_a_short_record_in_each_bucket(t):
    """Of epochs that are committed a bucket keeps nothing."""
    a = t.begin()
    for epoch in range(200):
        a.put({1: {"pv": 1}}, epoch)
        a.commit(epoch)

    info = t.table.info
    views = [t.engine.owners.buckets.view(info, bucket, a.record.number) for bucket in info.bucket_ids]
    assert max(len(view.epochs) for view in views) <= 2


def test_a_zombie_that_wakes_after_its_time_adds_nothing(t):
    """A writer that was stopped, another that took over, the first awake again: nothing of it is in the table."""
    zombie = t.table.writer("job", ["pv"], ttl=TTL)
    zombie.put([{"k": 1, "pv": 1}])
    zombie.commit()
    zombie.put([{"k": 1, "pv": 50}])
    zombie._ticker.stop()  # it sleeps
    t.rack.clock.advance(seconds=TTL + 1)
    other = t.table.writer("other", ["pv"])
    other.put([{"k": 1, "pv": 100}])
    ends = t.table.describe()["offsets"]

    for call in (lambda: zombie.put([{"k": 1, "pv": 7}]), zombie.commit, lambda: zombie.delete([1])):
        with pytest.raises((Fenced, OwnerRolledBack)):
            call()
    zombie.close()

    assert t.table.describe()["offsets"] == ends
    other.commit()
    other.close()
    t.check({1: {"pv": 101}})


def test_a_zombie_whose_place_nobody_took_is_told_that_its_time_is_up(t):
    zombie = t.table.writer("job", ["pv"], ttl=TTL)
    zombie.put([{"k": 1, "pv": 1}])
    t.rack.clock.advance(seconds=TTL + 1)

    with pytest.raises(LockExpired):
        zombie.put([{"k": 1, "pv": 7}])

    with t.table.writer("job", ["pv"]):
        t.check({})


def test_columns_taken_by_another_stay_its_own_after_a_restart(t):
    """A clean owner lapsed, another has its columns: a restart must not give both of them to both."""
    a = t.begin("a")
    a.put(every(pv=1))
    a.commit()
    t.rack.clock.advance(seconds=TTL)
    t.put([{"k": 1, "pv": 1}], columns=["pv"])
    t.begin("b")

    t.rack.reopen()

    assert set(t.locks()) == {"b"}
    with pytest.raises((Fenced, OwnerRolledBack)):
        a.put(every(pv=1), 1)


def test_an_owner_that_never_comes_back_is_taken_back_after_a_day(t):
    """The reaper: its columns are free, its commit is remembered."""
    a = t.begin("a")
    a.put(every(pv=1))
    a.commit()
    a.put(every(pv=10), 1)
    t.rack.clock.advance(seconds=TTL + 86_399)
    t.engine.reap()
    assert "a" in t.locks()
    t.rack.clock.advance(seconds=2)

    t.engine.reap()

    assert not t.locks()
    t.put([{"k": 1, "pv": 5}], columns=["pv"])
    assert t.begin("a").record.committed == 0
    t.check(every(pv=1) | {1: {"pv": 6}})
