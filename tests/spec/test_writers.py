"""A writer in a job's hands: what it knows, what it says when asked for what cannot be, and how it ends."""

import pytest
from tests.spec.owned import open_rack

from kolk.errors import InvalidArgument


@pytest.fixture
def rack(folder, form):
    with open_rack(folder, form) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


# --- commits


@pytest.mark.parametrize("state", ["text", None, 7, bytearray(b"x"), b"x" * 65_537])
def test_a_state_that_no_commit_keeps_is_refused_and_the_epoch_stays_open(t, state):
    with t.table.writer("a", ["pv"]) as w:
        w.put([{"k": 1, "pv": 1}])
        with pytest.raises(InvalidArgument, match="bytes"):
            w.commit(user_state=state)
        assert (w.committed, w.epoch) == (None, 0)

        w.commit(user_state=b"x" * 65_536)

        assert w.committed == 0
    t.check({1: {"pv": 1}})


def test_a_commit_whose_answer_was_lost_has_the_state_that_was_committed_then(t):
    """Made again with another state it is acknowledged, and the writer knows what stands."""
    with t.table.writer("a", ["pv"]) as w:
        w.put([{"k": 1, "pv": 1}])
        known = w._record
        t.service.commit_owner(known.table, known.number, known.fence, 0, w._seqs[0], b"first")

        w.commit(user_state=b"second")

        assert (w.committed, w.epoch, w.user_state) == (0, 1, b"first")
        w.commit(0, b"third")
        assert (w.epoch, w.user_state) == (1, b"first")
    with t.table.writer("a", ["pv"]) as w:
        assert (w.committed, w.user_state) == (0, b"first")
