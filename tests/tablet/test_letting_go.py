"""What a bucket lets go of, and what it does not: tags of puts that changed nothing, and itself on a full disk."""

import shutil

import pyarrow as pa
import pytest
from tests.tablet.conftest import SCHEMA
from tests.tablet.test_tablet import frames, partial_put, put, rows, together, upsert

from kolk.errors import DiskFull, OutcomeUnknown, Stopped
from kolk.merge.changes import change_schema
from kolk.model.ids import OwnerTag, PlainTag, TableId
from kolk.model.owner import Lock, OwnerRecord, Task, partition_of, ticket_of
from kolk.model.snapshot import Snapshot, SnapshotFile
from kolk.model.write import Action, Write
from kolk.storage.kv import Kv
from kolk.tablet.retention import Holder, HolderKind


class FullKv(Kv):
    """RocksDB on a disk that is full now and then."""

    is_full = False

    def flush(self):
        if type(self).is_full:
            raise DiskFull("no space")
        super().flush()

    def apply(self, writes, records, *, clear=False):
        if type(self).is_full:
            type(self).is_full = False
            raise DiskFull("no space")
        super().apply(writes, records, clear=clear)


class OneCopy:
    """A snapshot of a bucket: the folder of a checkpoint."""

    def __init__(self, folder, offset):
        self.folder = folder
        self.snapshot = Snapshot(
            id=1, offset=offset, rows=1, schema_id=SCHEMA.id, taken_ms=0, files=(SnapshotFile("all", 1, ""),)
        )

    def newest_first(self):
        return [self.snapshot]

    def check(self, snapshot):
        pass

    def restore(self, snapshot, folder):
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_tag_of_a_put_that_changed_nothing_is_kept_with_the_log_after_a_snapshot_of_its_offset(bench, goes_on):
    """The snapshot has the rows of that offset, and not the tag. So the retry is known though the KV is lost."""
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    made = tablet.checkpoint(bench.folder.parent / "checkpoint")
    for seq in range(1, 40):
        put(tablet, upsert((1, 1)), seq)
    assert len(tablet.log.segments) == 1, "they fill the segment of the row"
    if goes_on:
        put(tablet, upsert((2, 1)), 0, writer=9)
        assert [segment.end for segment in tablet.log.segments] == [1, 2]
    end = tablet.end
    tablet.trim(end, [Holder(kind=HolderKind.SNAPSHOT, owner="1", offset=made.offset)])
    tablet.close()
    shutil.rmtree(bench.folder / "kv")

    again = bench.open(copies=OneCopy(bench.folder.parent / "checkpoint", made.offset))

    assert (again.end, rows(again)[0]["n"]) == (end, 1)
    put(again, upsert((1, 7)), 0, writer=8)
    assert put(again, upsert((1, 1)), 39) == made.offset
    assert rows(again)[0]["n"] == 7, "the retry is not applied a second time"
    again.close()


def test_a_log_that_is_all_in_a_snapshot_goes_but_for_the_tags_behind_it(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    for seq in range(1, 20):
        put(tablet, upsert((1, 1)), seq)

    tablet.trim(tablet.end, [Holder(kind=HolderKind.SNAPSHOT, owner="1", offset=1)])

    assert (tablet.log.start, tablet.log.end) == (1, 1)
    assert [frame.header.tag.seq for frame in tablet.log.frames(1)] == list(range(14, 20)), "what is remembered"
    put(tablet, upsert((1, 2)), 20)
    tablet.close()


@pytest.mark.parametrize("is_log_table", [False, True])
def test_a_disk_too_full_for_trimming_stops_nothing(bench, is_log_table):
    bench.kv = FullKv
    tablet = bench.open_log_table() if is_log_table else bench.open()
    for seq in range(3):
        tablet.put(tablet.merger.prepare(appended(seq) if is_log_table else upsert((seq, 1))), PlainTag(7, seq))
    FullKv.is_full = True
    try:
        with pytest.raises(DiskFull):
            tablet.trim(3, [Holder(kind=HolderKind.SNAPSHOT, owner="1", offset=3)])
        if is_log_table:
            with pytest.raises(DiskFull):
                tablet.truncate()
    finally:
        FullKv.is_full = False

    assert (tablet.refusal, tablet.log.start) == (None, 0)
    tablet.trim(3, [Holder(kind=HolderKind.SNAPSHOT, owner="1", offset=3)])
    assert tablet.log.start == 3
    tablet.close()


def appended(n):
    return Write(action=Action.UPSERT, rows=pa.record_batch({"n": pa.array([n], pa.int64())}))


def test_a_pass_ends_where_taking_back_an_attempt_has_stopped_the_bucket(bench):
    """The log has what was taken back, and the KV has not: if the pass went on, the KV would stand behind it."""
    bench.kv = FullKv
    locks = {}
    tablet = bench.open(guard=lambda: locks)
    record = OwnerRecord(
        table=TableId(1), name="job", number=1, columns=(SCHEMA.column("n").id,), fence=1, ttl_seconds=60
    )
    put(tablet, upsert((1, 1, "a"), (2, 2, "b")), 0)
    for attempt in (1, 2):
        ticket = ticket_of(attempt, 0)
        locks[1] = Lock(record, 1e18, tasks={partition_of(ticket): Task(0, ticket)})
        if attempt == 1:
            tablet.put(tablet.merger.prepare(partial_put(1, 50)), OwnerTag(1, 1, ticket, 0, 0))
    FullKv.is_full = True

    refused, behind = together(
        tablet, [(partial_put(1, 60), OwnerTag(1, 1, ticket, 0, 0)), (upsert((3, 3, "c")), PlainTag(9, 0))]
    )

    assert isinstance(refused, OutcomeUnknown)
    assert isinstance(behind, Stopped)
    tablet.close(tablet.refusal)
    again = bench.open(guard=lambda: locks)
    logged = {}
    for frame in frames(again):
        if frame.header.rows:
            for row in pa.ipc.read_record_batch(frame.body, change_schema(SCHEMA)).to_pylist():
                _, *values = row.values()
                logged[values[0]] = values
    assert [list(row.values()) for row in rows(again)] == [logged[key] for key in sorted(logged)]
    assert logged[1][1] == 1, "it was taken back"
    again.close()
