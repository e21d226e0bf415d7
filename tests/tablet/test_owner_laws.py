"""The laws of owners, frame by frame: that those who look at a log of very many owners need bounded memory."""

from kolk.codec.frame import FrameHeader
from kolk.model.change import Offset
from kolk.model.ids import BucketId, OwnerTag, TableId, UndoTag
from kolk.tablet.faults import Faults
from kolk.tablet.owner_laws import TRAILS_MAX, OwnerLaws

HERE = BucketId(TableId(1), 0, 0)


def header(tag, base=0, rows=1):
    return FrameHeader(
        tag=tag,
        more=False,
        rows=rows,
        base_offset=Offset(base),
        timestamp_ms=0,
        schema_id=1,
        leader_epoch=0,
        synced=0,
        body_length=8,
    )


def test_those_who_wrote_longest_ago_are_forgotten_first():
    faults = Faults()
    laws = OwnerLaws("t", HERE, TRAILS_MAX + 1, [], None, faults)
    for owner in range(1, TRAILS_MAX + 2):
        laws.take(header(OwnerTag(owner, 2, 0, 5, 1)), set)

    laws.take(header(OwnerTag(1, 1, 0, 5, 1)), set)
    forgotten = len(faults.found)
    laws.take(header(OwnerTag(TRAILS_MAX + 1, 1, 0, 5, 1)), set)

    assert (forgotten, len(faults.found)) == (0, 1)
    assert len(laws._trails) == TRAILS_MAX


def test_an_undo_of_a_task_by_its_own_fence_may_stop_in_the_middle():
    """A crash in a commit of tasks leaves that, and the writer goes on."""
    faults = Faults()
    laws = OwnerLaws("t", HERE, 1, [], None, faults)

    laws.take(header(OwnerTag(1, 1, 5, 0, 1)), set)
    laws.take(header(UndoTag(1, 1, done=False)), set)
    laws.take(header(OwnerTag(1, 1, 6, 0, 1)), set)

    assert faults.found == []
