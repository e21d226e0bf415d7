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
