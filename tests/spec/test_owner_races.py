"""Owners at the moments between their own steps: late puts, copies, lapses, drops and takeovers that come in between.

What comes in between is started by the step itself, just before it writes (``tests.spec.moments``); who has to wait for
the step is given a moment to show that it does not.
"""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from tests.spec.moments import open_moments
from tests.spec.owned import TTL

import kolk
from kolk.errors import Busy, ColumnLockConflict, EpochClosed, Fenced, KolkError, LockExpired
from kolk.model.ids import OwnerTag

A_MOMENT = 0.2
"""How long somebody is given who must not get any further."""


@pytest.fixture
def rack(folder):
    with open_moments(folder) as rack:
        yield rack


@pytest.fixture
def moments(rack):
    return rack.moments


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def keys(t):
    return t.a_key_of_each_bucket()


@pytest.fixture
def beside():
    """Calls that go on in another thread; each is given a moment to get as far as it can."""
    with ThreadPoolExecutor(4) as pool:

        def start(call, *args, **options):
            future = pool.submit(call, *args, **options)
            wait([future], A_MOMENT)
            return future

        yield start


def sums(t):
    return {key: row["pv"] for key, row in t.rows().items() if "pv" in row}


# --- commits


def test_h29_what_a_failed_attempt_writes_under_a_commit_is_not_committed(t, keys, moments):
    """Its bucket was looked at, and taken back, before it came: it must not come any more."""
    a = t.begin(attempt="r")
    one, lost = a.begin_task(0, 1), a.begin_task(0, 2)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=one.ticket)
    a.seal(1, one.ticket, {"0": 1})
    a.put({keys[1]: {"pv": 1}}, 0, seq=1, ticket=lost.ticket)

    def straggle():
        with pytest.raises(Busy):
            a.put({keys[1]: {"pv": 7}}, 0, seq=2, ticket=lost.ticket)

    moments.at_record(straggle)
    a.commit_tasks(0, {"0": (one.ticket, 1)})

    with pytest.raises(EpochClosed):
        a.put({keys[1]: {"pv": 7}}, 0, seq=2, ticket=lost.ticket)
    t.begin()
    assert sums(t) == {keys[0]: 1}


def test_h29_a_put_under_way_is_waited_for_by_the_commit(t, keys, moments, beside):
    """It has been let in, and is not in its bucket yet: the commit must see it."""
    a = t.begin(attempt="r")
    one, lost = a.begin_task(0, 1), a.begin_task(0, 2)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=one.ticket)
    a.seal(1, one.ticket, {"0": 1})
    commits = []
    moments.at_frames(lambda: commits.append(beside(a.commit_tasks, 0, {"0": (one.ticket, 1)})))

    a.put({keys[1]: {"pv": 7}}, 0, seq=1, ticket=lost.ticket)

    commits[0].result(10)
    assert sums(t) == {keys[0]: 1}


def test_a_late_put_is_not_committed_unnamed(t, keys, moments):
    """A put that its client has given up must not be in an epoch that it has not named it for."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0, seq=1)

    def straggle():
        with pytest.raises(Busy):
            a.put({keys[1]: {"pv": 7}}, 0, seq=2)
        a.put({keys[1]: {"pv": 10}}, 1, seq=3)
        a.put({keys[0]: {"pv": 1}}, 0, seq=1)

    moments.at_record(straggle)
    a.commit(0, {"0": 1})

    t.begin()
    assert sums(t) == {keys[0]: 1}


def test_a_commit_that_is_refused_leaves_its_epoch_open(t, keys):
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0, seq=1)
    with pytest.raises(KolkError, match="last put"):
        a.commit(0, {"0": 2})

    a.put({keys[0]: {"pv": 1}}, 0, seq=2)
    a.commit(0, {"0": 2})

    assert sums(t) == {keys[0]: 2}


def test_h34_a_copy_that_begins_while_the_winner_ends_is_given_its_message(t, keys, moments, beside):
    """Else neither could end: the winner is displaced, and its buckets are sealed."""
    a = t.begin(attempt="r")
    winner = a.begin_task(0, 1)
    a.put({keys[0]: {"pv": 1}}, 0, seq=1, ticket=winner.ticket)
    copies = []
    moments.at_frames(lambda: copies.append(beside(a.begin_task, 0, 1)))

    a.seal(1, winner.ticket, {"0": 1}, b"won")

    assert copies[0].result(10).message == b"won"
    a.commit_tasks(0, {"0": (winner.ticket, 1)})
    assert sums(t) == {keys[0]: 1}


def test_h1_puts_that_wait_together_have_a_frame_each_and_are_taken_back_each_by_itself(t, keys, moments, beside):
    """One frame for two of them would hide one owner's change under the other's tag."""
    a, b = t.begin("a", ["pv"]), t.begin("b", ["top"])
    calls = []

    def queue():
        calls.append(beside(a.put, {keys[0]: {"pv": 1}}, 0))
        calls.append(beside(b.put, {keys[0]: {"top": 1}}, 0))
        calls.append(beside(t.put, [{"k": keys[0], "title": "x"}], columns=["title"]))

    moments.at_frames(queue)
    t.put([{"k": keys[0], "title": "w"}], columns=["title"])
    for call in calls:
        call.result(10)

    _, *tags = t.frames(0)
    assert len(set(tags)) == 3
    assert {tag.owner for tag in tags if isinstance(tag, OwnerTag)} == {a.record.number, b.record.number}
    t.begin("a", ["pv"])
    t.check({keys[0]: {"top": 1, "title": "x"}})


# --- columns that are let go


def test_h23_columns_are_not_free_while_a_put_of_their_owner_is_being_written(t, keys, moments, beside):
    """It was let in before its time was up: whoever writes now would be wiped by the owner's undo."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0)
    a.commit(0)
    plain = []

    def pass_by():
        t.rack.clock.advance(seconds=TTL)
        plain.append(beside(t.put, [{"k": keys[0], "pv": 100}], columns=["pv"]))

    moments.at_frames(pass_by)
    a.put({keys[0]: {"pv": 10}}, 1)

    with pytest.raises(ColumnLockConflict):
        plain[0].result(10)
    t.begin()
    t.put([{"k": 9, "title": "x"}], columns=["title"])
    assert sums(t) == {keys[0]: 1}


@pytest.mark.parametrize("how", ["rest", "release", "evict"])
def test_an_owner_that_has_nothing_to_take_back_writes_no_more_while_it_lets_go(t, keys, moments, how):
    """It was looked at and found clean: what it writes now would be nobody's, and never taken back."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0)
    a.commit(0)

    def write():
        for call in (lambda: a.put({keys[0]: {"pv": 5}}, 1), lambda: a.commit(1), a.renew):
            with pytest.raises(Fenced):
                call()

    moments.at_record(write)
    if how == "evict":
        t.rack.clock.advance(seconds=TTL - 1)
        t.engine.owners.evict(t.table.info, t.engine.owners._records[t.table.info.id, "a"])
    else:
        getattr(a, how)()

    t.put([{"k": keys[0], "pv": 10}], columns=["pv"])
    t.begin()
    assert sums(t) == {keys[0]: 11}


def test_a_newer_writer_of_the_same_name_fences_the_older_one_in_every_call(t, keys):
    """Stale after it was taken again: puts, deletes, commits, renewals and tasks."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0)
    b = t.begin()
    b.put({keys[0]: {"pv": 10}}, 0)

    calls = [
        lambda: a.put({keys[0]: {"pv": 5}}, 1, seq=99),
        lambda: a.delete([keys[0]], 1),
        lambda: a.commit(0),
        lambda: a.commit(7, {}),
        a.renew,
        lambda: a.begin_task(1, 0),
        lambda: a.seal(0, 1, {}),
        lambda: a.commit_tasks(1, {}),
    ]
    for call in calls:
        with pytest.raises(Fenced):
            call()
    a.rest()
    assert not a.release()

    b.commit(0)
    assert sums(t) == {keys[0]: 10}


def test_what_was_let_in_before_a_takeover_is_taken_back_by_it(t, keys, moments, beside):
    """The end of the log is final for the old writer before anybody looks for what it left."""
    a = t.begin("a")
    later = []
    moments.at_frames(lambda: later.append(beside(t.begin, "a")))

    a.put({keys[0]: {"pv": 10}}, 0)

    assert later[0].result(10).record.fence == 2
    assert sums(t) == {}


def test_an_owner_that_comes_back_while_it_is_given_up_keeps_its_columns(t, keys, moments, beside):
    """The reaper judged the one before; it waits for the one that begins, and must look again."""
    t.begin().put({keys[0]: {"pv": 1}}, 0)
    t.rack.clock.advance(seconds=TTL + 86_401)
    reaped = []
    moments.at_record(lambda: reaped.append(beside(t.engine.reap)))
    a = t.begin()

    reaped[0].result(10)
    a.put({keys[0]: {"pv": 5}}, 0)
    a.commit(0)

    assert sums(t) == {keys[0]: 5}
    assert t.engine.owners.tally.counts.evicted == 0


def test_a_table_that_is_dropped_beside_a_commit_leaves_no_owner(t, keys, moments, beside):
    """Else its record and its lock would come back, and nobody would ever remove them."""
    a = t.begin()
    a.put({keys[0]: {"pv": 1}}, 0)
    dropped = []
    moments.at_record(lambda: dropped.append(beside(t.rack.db.drop_table, "t")))

    a.commit(0)

    dropped[0].result(10)
    assert not t.engine._meta.list("owner/")
    assert not t.engine.owners._records
    t.engine.reap()


# --- zombies


@pytest.mark.parametrize("how", ["fenced", "expired", "released"])
def test_a_zombie_makes_no_partitions(rack, how):
    """Nothing of it is left anywhere, also not the partition that its rows were for."""
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("k", "int"), kolk.Column("a", "int")], ["day", "k"])
    t = rack.create("days", schema, partition_by=["day"], buckets=1)
    zombie = t.table.writer("a", ["a"], ttl=TTL)
    zombie.put([{"day": 1, "k": 1, "a": 1}])
    zombie._ticker.stop()
    if how == "fenced":
        t.begin(columns=["a"])
    elif how == "released":
        t.rack.db.release_lock("days", "a")
    else:
        t.rack.clock.advance(seconds=TTL)

    with pytest.raises((Fenced, LockExpired)):
        zombie.put([{"day": 9, "k": 1, "a": 1}])

    assert [each.name for each in t.table.partitions()] == ["day=1"]


def test_a_writer_whose_time_was_up_takes_back_what_it_left_when_it_closes(t):
    """Nobody took over, so nobody else has; and it may be long until somebody comes."""
    w = t.table.writer("a", ["pv"], ttl=TTL)
    w.put([{"k": 1, "pv": 1}])
    w.commit()
    w.put([{"k": 1, "pv": 5}])
    w._ticker.stop()
    t.rack.clock.advance(seconds=TTL)
    with pytest.raises(LockExpired):
        w.put([{"k": 1, "pv": 5}])

    w.close()

    t.check({1: {"pv": 1}})
    assert not t.locks()


def test_a_writer_that_was_fenced_leaves_the_newer_one_alone_when_it_closes(t):
    old = t.table.writer("a", ["pv"])
    new = t.table.writer("a", ["pv"])
    new.put([{"k": 1, "pv": 1}])
    with pytest.raises(Fenced):
        old.put([{"k": 1, "pv": 5}])
    with pytest.raises(Fenced):
        old.commit()

    old.close()

    new.put([{"k": 1, "pv": 1}])
    new.commit()
    new.close()
    t.check({1: {"pv": 2}})
