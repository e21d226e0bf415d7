"""The tablet: puts in passes, each with its own frame, tag and fate."""

import shutil
import sys
import threading

import pyarrow as pa
import pytest
from tests.tablet.views import read

from kolk.config import Durability
from kolk.errors import Closed, StaleTag, Stopped, TooLarge
from kolk.merge.engine import ROW_BYTES_MAX
from kolk.model.ids import PlainTag, SystemTag
from kolk.model.schema import Column, Schema
from kolk.model.write import Action, Write
from kolk.tablet.changelog import read_changelog
from kolk.tablet.retention import Holder, HolderKind

SCHEMA = Schema([Column("id", "bigint"), Column("n", "bigint"), Column("s", "string")], ["id"])


def upsert(*rows: tuple) -> Write:
    filled = [dict(zip(SCHEMA.names, (*row, None, None)[:3], strict=True)) for row in rows]
    return Write(action=Action.UPSERT, rows=pa.RecordBatch.from_pylist(filled, SCHEMA.arrow))


def partial_put(id: int, n: int) -> Write:
    schema = pa.schema([SCHEMA.columns[0].arrow, SCHEMA.columns[1].arrow])
    return Write(action=Action.UPSERT, rows=pa.record_batch({"id": [id], "n": [n]}, schema), columns=("n",))


def delete(*ids: int) -> Write:
    schema = pa.schema([SCHEMA.columns[0].arrow])
    return Write(action=Action.DELETE, rows=pa.record_batch({"id": pa.array(ids, pa.int64())}, schema))


def put(tablet, write: Write, seq: int, writer: int = 7) -> int:
    return tablet.put(tablet.merger.prepare(write), PlainTag(writer, seq))


def rows(tablet) -> list[dict]:
    view = tablet.pin_view()
    try:
        return read(view)
    finally:
        view.close()


def frames(tablet):
    return list(tablet.log.frames(tablet.log.start))


def together(tablet, writes: list[tuple[Write, PlainTag]]) -> list[int | BaseException]:
    """Put these in one pass: they queue up, in order, behind a lock that is held until all of them wait."""
    outcomes: list[int | BaseException] = [Closed("never served")] * len(writes)

    def run(place: int, write: Write, tag: PlainTag) -> None:
        try:
            outcomes[place] = tablet.put(tablet.merger.prepare(write), tag)
        except BaseException as error:  # noqa: BLE001 - the outcome is what the test looks at
            outcomes[place] = error

    threads = []
    with tablet.held():
        for place, (write, tag) in enumerate(writes):
            threads.append(threading.Thread(target=run, args=(place, write, tag)))
            threads[-1].start()
            while len(tablet._queue) <= place:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)
    return outcomes


def test_concurrent_puts_share_a_sync_but_not_a_frame(bench):
    tablet = bench.open()
    put(tablet, upsert((0, 0)), 0)
    syncs = SyncCounter(tablet.log)

    ends = together(tablet, [(upsert((n, n)), PlainTag(n, 0)) for n in range(1, 6)])

    assert syncs.count == 1
    assert ends == [2, 3, 4, 5, 6]
    assert [frame.header.tag for frame in frames(tablet)][1:] == [PlainTag(n, 0) for n in range(1, 6)]


def test_puts_that_come_while_a_pass_begins_are_all_served(bench):
    bench.durability = Durability.PROCESS
    tablet = bench.open()
    failures: list[BaseException] = []

    def work(writer: int) -> None:
        prepared = tablet.merger.prepare(upsert((writer, writer)))
        try:
            for seq in range(300):
                tablet.put(prepared, PlainTag(writer, seq))
        except BaseException as error:  # noqa: BLE001 - what the test looks at
            failures.append(error)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places all the time, so that a race shows itself
    try:
        threads = [threading.Thread(target=work, args=(writer,)) for writer in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)

    assert failures == []
    assert len(frames(tablet)) == 6 * 300


class SyncCounter:
    """Counts the syncs of a log by standing in front of its file."""

    def __init__(self, log) -> None:
        self.count = 0
        self._file, log._file = log._file, self

    def sync(self) -> None:
        self.count += 1
        self._file.sync()

    def __getattr__(self, name: str):
        return getattr(self._file, name)


def test_a_put_sees_the_puts_before_it_in_its_pass(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1, "kept")), 0)

    together(
        tablet,
        [
            (partial_put(1, 2), PlainTag(1, 0)),
            (partial_put(1, 3), PlainTag(2, 0)),
            (delete(1), PlainTag(3, 0)),
            (partial_put(1, 4), PlainTag(4, 0)),
        ],
    )

    page = read_changelog(tablet, 1)
    shown = list(zip(*(page.batch.column(name).to_pylist() for name in ("_change_type", "n", "s")), strict=True))
    assert shown == [
        ("-U", 1, "kept"),
        ("+U", 2, "kept"),
        ("-U", 2, "kept"),
        ("+U", 3, "kept"),
        ("-D", 3, "kept"),
        ("+I", 4, None),
    ]
    assert rows(tablet) == [{"id": 1, "n": 4, "s": None}]


def test_a_delete_sees_a_blind_put_before_it_in_its_pass(bench):
    tablet = bench.open(options={"table.changelog.image": "wal"})

    together(tablet, [(upsert((1, 1)), PlainTag(1, 0)), (delete(1), PlainTag(2, 0))])

    page = read_changelog(tablet, 0)
    assert page.batch.column("_change_type").to_pylist() == ["+U", "-D"]
    assert rows(tablet) == []


def test_a_put_that_cannot_be_merged_fails_alone(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    too_big = Write(
        action=Action.UPSERT,
        rows=pa.record_batch(
            {"id": [2], "s": ["x" * (ROW_BYTES_MAX + 1)]}, pa.schema([SCHEMA.arrow[0], SCHEMA.arrow[2]])
        ),
        columns=("s",),
    )

    outcomes = together(
        tablet,
        [(upsert((3, 3)), PlainTag(1, 0)), (too_big, PlainTag(2, 0)), (upsert((4, 4)), PlainTag(3, 0))],
    )

    assert outcomes[0] == 2
    assert isinstance(outcomes[1], TooLarge)
    assert outcomes[2] == 3
    assert [row["id"] for row in rows(tablet)] == [1, 3, 4]


def test_a_put_and_its_retry_in_one_pass_are_one_put(bench):
    tablet = bench.open()

    ends = together(tablet, [(upsert((1, 1)), PlainTag(9, 0)), (upsert((1, 1)), PlainTag(9, 0))])

    assert ends == [1, 1]
    assert len(frames(tablet)) == 1


def test_a_put_that_changes_nothing_writes_its_tag_and_takes_no_offset(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)

    end = put(tablet, upsert((1, 1)), 1)

    assert end == 1
    assert [(frame.header.rows, frame.header.tag.seq) for frame in frames(tablet)] == [(1, 0), (0, 1)]


def test_a_retry_of_an_old_put_is_refused_and_a_recent_one_answered(bench):
    tablet = bench.open()
    for seq in range(8):
        put(tablet, upsert((seq, seq)), seq)

    assert put(tablet, upsert((5, 5)), 5) == 6
    with pytest.raises(StaleTag):
        put(tablet, upsert((1, 1)), 1)
    assert tablet.end == 8


def test_everything_written_is_there_after_a_reopen_without_a_clean_close(bench):
    tablet = bench.open()
    for seq in range(50):
        put(tablet, upsert(*((n, seq) for n in range(seq % 7 + 1))), seq)
    put(tablet, delete(0), 50)
    expected, end = rows(tablet), tablet.end
    abandon(tablet)

    again = bench.open()

    assert (rows(again), again.end) == (expected, end)
    assert put(again, delete(0), 50) == end  # the retry of an acknowledged put, found in the replayed log
    again.close()


def abandon(tablet) -> None:
    """Drop a tablet without closing it; what a killed process leaves is tested in tests/faults."""
    tablet.log.close()
    kv = tablet._kv
    tablet._views.clear()
    kv._db.cancel_all_background(True)
    tablet._kv = None
    kv._db = None


def test_a_kv_that_is_gone_is_built_anew_from_the_log(bench):
    tablet = bench.open()
    for seq in range(20):
        put(tablet, upsert((seq % 5, seq)), seq)
    expected = rows(tablet)
    tablet.close()
    bench.disk.remove_tree(str(bench.folder / "kv"))

    again = bench.open()

    assert rows(again) == expected
    assert put(again, upsert((0, 0)), 19) == 35  # its last put is still known
    again.close()


def test_replay_starts_at_the_applied_offset_not_at_the_beginning(bench):
    tablet = bench.open()
    for seq in range(30):
        put(tablet, upsert((seq, seq)), seq)
    tablet.close()
    reads = ReadCounter(bench.disk)
    bench.disk = reads

    bench.open().close()

    assert reads.frames_from_sealed_segments == 0


class ReadCounter:
    """A disk that counts the bytes read of all log segments but the last."""

    def __init__(self, disk) -> None:
        self._disk = disk
        self.frames_from_sealed_segments = 0

    def open_reader(self, path: str):
        folder, _, name = path.rpartition("/")
        logs = [entry for entry in self._disk.list(folder) if entry.endswith(".log")]
        if name.endswith(".log") and name != logs[-1]:
            self.frames_from_sealed_segments += 1
        return self._disk.open_reader(path)

    def __getattr__(self, name: str):
        return getattr(self._disk, name)


def test_writers_idle_for_a_week_are_forgotten(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0, writer=1)
    bench.clock.advance(ms=7 * 24 * 3600 * 1000 + 1)

    put(tablet, upsert((2, 2)), 0, writer=2)

    assert tablet._dedup.writer(PlainTag(1, 0)).kept == ()
    assert tablet._dedup.writer(PlainTag(2, 0)).kept == ((0, 2),)
    assert set(tablet._kv.records(b"w")) == {b"w" + (2).to_bytes(16)}


def test_truncation_is_one_group_of_frames(bench):
    tablet = bench.open()
    put(tablet, upsert(*((n, n) for n in range(10))), 0)

    assert tablet.truncate() == 20

    group = [frame.header for frame in frames(tablet) if isinstance(frame.header.tag, SystemTag)]
    assert [header.more for header in group] == [True, False]
    assert rows(tablet) == []


def test_a_closed_tablet_refuses_everything_and_revokes_its_views(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    view = tablet.pin_view()

    tablet.close()
    tablet.close()

    for attempt in (
        lambda: put(tablet, upsert((2, 2)), 1),
        lambda: tablet.get([b"\x01"]),
        tablet.pin_view,
        tablet.truncate,
        lambda: view.take(b"", 10),
        lambda: tablet.read_log(0, 1, 100),
    ):
        with pytest.raises(Closed, match="closed"):
            attempt()


def test_log_tables_keep_their_tags_over_a_restart(bench):
    tablet = bench.open_log_table()
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
    write = Write(action=Action.UPSERT, rows=batch)
    put(tablet, write, 0)
    tablet.close()

    again = bench.open_log_table()

    assert put(again, write, 0) == 2
    assert again.end == 2
    again.close()


class Interrupting:
    """Stands in front of a tablet's part and raises KeyboardInterrupt once, after a call has done its work."""

    def __init__(self, part, call: str) -> None:
        self._part = part
        self._call = call

    def __getattr__(self, name: str):
        attribute = getattr(self._part, name)
        if name != self._call:
            return attribute
        self._call = ""

        def interrupted(*arguments, **named):
            attribute(*arguments, **named)
            raise KeyboardInterrupt

        return interrupted


@pytest.mark.parametrize(("part", "call"), [("log", "append"), ("log", "sync"), ("_kv", "apply")])
def test_an_interrupt_anywhere_in_a_commit_never_leaves_log_and_kv_apart(bench, part, call):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    healthy = getattr(tablet, part)
    setattr(tablet, part, Interrupting(healthy, call))

    with pytest.raises(KeyboardInterrupt):
        put(tablet, upsert((2, 2)), 1)

    assert tablet.wants_recovery
    with pytest.raises(Stopped):
        put(tablet, upsert((3, 3)), 2)
    setattr(tablet, part, healthy)
    tablet.close()
    again = bench.open()
    assert put(again, upsert((2, 2)), 1) == 2  # it was in the log, and is applied once
    assert [row["id"] for row in rows(again)] == [1, 2]
    again.close()


def test_an_interrupted_put_is_not_applied_later_on_behalf_of_nobody(bench):
    tablet = bench.open()
    prepared = tablet.merger.prepare(upsert((1, 1)))
    lock = tablet._lock

    class Refusing:
        def __enter__(self):
            raise KeyboardInterrupt

        def __exit__(self, *exc):
            return None

    tablet._lock = Refusing()
    with pytest.raises(KeyboardInterrupt):
        tablet.put(prepared, PlainTag(1, 0))
    tablet._lock = lock

    put(tablet, upsert((2, 2)), 0)

    assert [row["id"] for row in rows(tablet)] == [2]


def test_the_others_of_an_interrupted_pass_are_told_to_retry_not_that_they_were_interrupted(bench):
    tablet = bench.open()
    tablet.log = Interrupting(tablet.log, "sync")

    outcomes = together(tablet, [(upsert((n, n)), PlainTag(n, 0)) for n in range(3)])

    kinds = sorted(type(outcome).__name__ for outcome in outcomes)
    assert kinds == ["KeyboardInterrupt", "OutcomeUnknown", "OutcomeUnknown"]


def test_closing_waits_for_reads_under_way(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    done = threading.Event()

    with tablet._readers.reading():
        closer = threading.Thread(target=lambda: (tablet.close(), done.set()))
        closer.start()
        assert not done.wait(0.2)
    closer.join(30)

    assert done.is_set()


def test_closing_does_not_wait_for_a_read_that_an_interrupt_kept_from_signing_off(bench):
    tablet = bench.open()
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    tablet._readers._threads[object()] = ended.ident
    tablet._readers._threads[object()] = threading.get_ident()

    tablet.close()

    assert tablet.refusal is not None


def test_a_log_is_trimmed_only_as_far_as_nobody_holds_it(bench):
    tablet = bench.open_log_table()
    batch = pa.record_batch({"n": pa.array(range(200), pa.int64())})
    for seq in range(20):
        put(tablet, Write(action=Action.UPSERT, rows=batch), seq)
    follower = Holder(kind=HolderKind.FOLLOWER, owner="dashboard", offset=1000)

    tablet.trim(4000, [follower])
    assert 0 < tablet.log.start <= 1000

    tablet.trim(4000, [])
    assert tablet.log.start > 1000
    tablet.close()


def test_truncating_a_log_table_keeps_its_write_tags_through_a_crash(bench):
    tablet = bench.open_log_table()
    write = Write(action=Action.UPSERT, rows=pa.record_batch({"n": pa.array([1], pa.int64())}))
    put(tablet, write, 0)
    tablet.truncate()
    copied = bench.folder.parent / "copied"  # what a kill leaves: the files as they are now
    shutil.copytree(bench.folder, copied)
    tablet.close()
    bench.folder = copied

    again = bench.open_log_table()

    assert put(again, write, 0) == 1
    assert again.end == 1
    again.close()
