"""What an owner writes again: retries, told by their counts, and replays that are not taken back before."""

import pytest
from tests.spec.owned import TTL, open_rack

import kolk
from kolk.errors import CommitMismatch, EpochClosed, InvalidArgument, InvalidRows, StaleTag


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=1)


# --- counts


def test_h3_a_count_that_begins_anew_with_an_epoch_is_not_taken_for_a_retry(t):
    """Its rows would be acknowledged and not written, and the commit would not notice."""
    a = t.begin()
    for seq in (1, 2, 3):
        a.put({seq: {"pv": 1}}, 0, seq=seq)

    for seq in (1, 2, 3):
        with pytest.raises(InvalidArgument, match="epoch 0"):
            a.put({seq: {"pv": 1}}, 1, seq=seq)
    a.put({4: {"pv": 1}}, 1, seq=4)
    t.rack.reopen()
    with pytest.raises(InvalidArgument, match="epoch 1"):
        a.put({4: {"pv": 1}}, 2, seq=4)

    t.check({key: {"pv": 1} for key in (1, 2, 3, 4)})


def test_h3_a_put_that_comes_after_the_next_one_is_done_if_nothing_is_forgotten(t):
    """Also if it is the first: as long as all puts are remembered it is known not to have arrived."""
    a = t.begin()
    for seq in (7, 3, 5, 1):
        a.put({1: {"pv": seq}}, seq=seq)
    for seq in (1, 3, 5, 7):
        a.put({1: {"pv": 100}}, seq=seq)
    a.put({1: {"pv": 9}}, seq=9)
    with pytest.raises(StaleTag):
        a.put({1: {"pv": 100}}, seq=0)

    a.commit(0, {"0": 9})

    t.check({1: {"pv": 25}})


def test_a_writer_that_begins_again_counts_from_the_start(t):
    """Counts are of a fence: what another writer in its name had counted is none of its own."""
    for _ in range(3):
        a = t.begin()
        a.put({1: {"pv": 1}}, a.record.committed + 1, seq=1)
        a.commit(a.record.committed + 1, {"0": 1})

    t.check({1: {"pv": 3}})


# --- commits of what was committed


def test_h27_a_replay_of_several_epochs_is_acknowledged_with_its_commits(t):
    """A job that goes on from an older checkpoint replays, and commits, epoch by epoch; nothing is counted twice."""
    a = t.begin()
    for epoch in (5, 6, 7):
        a.put({1: {"pv": 1}}, epoch)
        a.commit(epoch, state=b"at %d" % epoch)
    with pytest.raises(EpochClosed):
        a.commit(6)

    b = t.begin()
    for epoch in (5, 6, 7):
        b.put({1: {"pv": 1}}, epoch)
        b.commit(epoch, {"0": 99}, b"other")
    assert t.begin().record.state == b"at 7"
    b = t.begin()
    b.put({1: {"pv": 1}}, 8)
    b.commit(8)

    t.check({1: {"pv": 4}})


def test_h27_a_writer_that_replays_an_earlier_epoch_still_knows_what_is_committed(t):
    with t.table.writer("a", ["pv"]) as w:
        w.put([{"k": 1, "pv": 1}], epoch=7)
        w.commit(7, b"at 7")
    with t.table.writer("a", ["pv"]) as w:
        w.put([{"k": 1, "pv": 1}], epoch=5)
        w.commit(5, b"at 5")

        assert (w.committed, w.epoch, w.user_state) == (7, 8, b"at 7")
        assert '"epoch": 7' in w.state()
    t.check({1: {"pv": 1}})


# --- without undo


def test_h33_what_an_earlier_writer_counted_is_not_what_this_one_commits(t):
    """Without undo the epochs of earlier fences stay, but their counts are over: a replay has counts of its own."""
    a = t.begin(columns=["top"], undo="none")
    for epoch in (5, 6):
        for _ in range(3):
            a.put({1: {"top": epoch}}, epoch)

    b = t.begin(columns=["top"], undo="none")
    b.put({1: {"top": 5}}, 5)
    b.commit(5)
    b.put({1: {"top": 6}}, 6)
    with pytest.raises(CommitMismatch):
        b.commit(6, {"0": 6})
    b.commit(6)
    b.commit(7, {})

    t.check({1: {"top": 6}})


def test_h33_a_bucket_that_a_replay_does_not_reach_is_no_mismatch(rack):
    t = rack.create("two", buckets=2)
    one, other = t.a_key_of_each_bucket()
    t.begin(columns=["top"], undo="none").put({one: {"top": 1}, other: {"top": 1}}, 0)

    a = t.begin(columns=["top"], undo="none")
    a.put({one: {"top": 1}}, 0)
    a.commit(0)

    assert t.locks()["a"].epoch == 0


def test_h33_a_column_that_comes_later_is_not_written_without_undo(rack):
    """The owner of all columns has it too, but a replay would count it twice."""
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("top", "bigint", agg="max")], "k")
    t = rack.create("tops", schema, buckets=1)
    a = t.begin(columns=None, undo="none")
    a.put([{"k": 1, "top": 1}])
    t.table.add_column("pv", "bigint", agg="sum")

    for columns in (("pv",), ("top", "pv"), None):
        with pytest.raises(InvalidRows, match="pv"):
            a.put([{"k": 1, "top": 1, "pv": 1}], columns=columns)
    a.put([{"k": 1, "top": 2}], columns=("top",))
    with pytest.raises(InvalidArgument):
        t.begin(columns=None, undo="none")

    t.check({1: {"top": 2}})


def test_h33_without_undo_a_takeover_leaves_everything(t):
    """No undo is ever run, also not for the one who comes next; what it was is said by db.locks()."""
    t.begin(columns=["top"], undo="none").put({1: {"top": 5}}, 0)
    assert t.locks()["a"].undo == "none"
    t.rack.clock.advance(seconds=TTL)
    b = t.begin("b", ["top"])
    b.put({1: {"top": 9}}, 0)

    t.begin("b", ["top"])

    t.check({1: {"top": 5}})
