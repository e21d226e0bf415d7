"""Expired rows of one bucket: judged to the last digit, removed by a frame that everybody can read."""

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tablet.views import read

from kolk.errors import Closed, DiskFull, TableNotFound
from kolk.merge.engine import Merger
from kolk.model.evolution import AddColumn, DropColumn, MoveColumn, RenameColumn, altered
from kolk.model.ids import PlainTag, SystemTag, SystemWork
from kolk.model.schema import Column, Schema
from kolk.model.table import TableSpec
from kolk.model.types import DataType
from kolk.model.write import Action, Write
from kolk.storage.kv import Kv
from kolk.tablet.changelog import read_changelog
from kolk.tablet.expiry import earliest_ms, expired, look, unchanged
from kolk.testing.disk import LossyDisk

SPEC = TableSpec.make("t", Schema([Column("id", "int"), Column("at", "timestamp(3)"), Column("s", "string")], "id"))
AT = SPEC.schema.column("at").id
DAY_MS = 86_400_000
UNITS = {0: 1, 3: 1_000, 6: 1_000_000, 9: 1_000_000_000}
"""Ticks of a second, by the digits of a type that are all that its unit holds."""


def merger(spec: TableSpec, *earlier: TableSpec) -> Merger:
    return Merger(spec.schema, spec.options, [before.schema for before in earlier])


def put(tablet, seq: int, *rows: tuple, spec: TableSpec = SPEC) -> int:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, spec.schema.arrow, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=spec.schema.arrow)
    write = Write(action=Action.UPSERT, rows=batch, schema_id=spec.schema.id)
    return tablet.put(tablet.merger.prepare(write), PlainTag(7, seq))


def delete(tablet, seq: int, id: int) -> int:
    rows = pa.record_batch({"id": pa.array([id], pa.int32())}, pa.schema([SPEC.schema.column("id").arrow]))
    return tablet.put(tablet.merger.prepare(Write(action=Action.DELETE, rows=rows)), PlainTag(7, seq))


def ids(tablet) -> list[int]:
    view = tablet.pin_view()
    try:
        return [row[tablet.merger.schema.primary_key[0]] for row in read(view)]
    finally:
        view.close()


def times_of(ticks: list[int | None], type: DataType) -> pa.Array:
    """A column of these ticks."""
    plain = pa.int32() if type.arrow == pa.date32() else pa.int64()
    return pa.array(ticks, plain).view(type.arrow)


@pytest.fixture
def tablet(bench):
    tablet = bench.open(merger(SPEC))
    yield tablet
    tablet.close()


# --- which rows


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ltz"])
@pytest.mark.parametrize("digits", range(10))
def test_a_time_is_compared_to_its_last_digit(kind, digits):
    type = DataType.parse(f"{kind}({digits})")
    per_second = UNITS[-(-digits // 3) * 3]
    exact = 1_700_000_000 * per_second

    ticks = [exact - 1, exact, exact + 1, None]

    assert expired(times_of(ticks, type), type, 1_700_000_000_000).tolist() == [True, True, False, False]


def test_a_date_is_its_midnight_in_utc():
    type = DataType.parse("date")
    times = times_of([18, 19, 20, None], type)

    assert expired(times, type, 19 * DAY_MS - 1).tolist() == [True, False, False, False]
    assert expired(times, type, 19 * DAY_MS).tolist() == [True, True, False, False]


@pytest.mark.parametrize("text", ["timestamp(0)", "timestamp(9)", "date"])
@pytest.mark.parametrize(("before_ms", "is_expired"), [(-(10**23), False), (10**23, True)])
def test_a_moment_beyond_everything_that_a_type_can_say_is_no_error(text, before_ms, is_expired):
    type = DataType.parse(text)
    bounds = np.iinfo(np.int32 if text == "date" else np.int64)
    times = times_of([int(bounds.min), 0, int(bounds.max), None], type)

    assert expired(times, type, before_ms).tolist() == [is_expired] * 3 + [False]


@given(
    st.sampled_from(["date", *(f"timestamp({digits})" for digits in range(10))]),
    st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=20),
    st.integers(-(10**14), 10**14),
)
def test_the_earliest_time_is_the_first_moment_at_which_a_row_expires(text, ticks, before_ms):
    type = DataType.parse(text)
    times = times_of(ticks, type)

    due_ms = earliest_ms(times, type)

    assert (due_ms is None) == (times.null_count == len(times))
    assert bool(expired(times, type, before_ms).any()) == (due_ms is not None and due_ms <= before_ms)


# --- one step


def test_what_has_expired_goes_with_its_whole_row_in_one_frame(tablet):
    put(tablet, 0, (1, 100, "old"), (2, 101, "new"), (3, 99, "older"), (4, None, "timeless"))

    walk = tablet.expire(AT, 100, b"", 1_000)

    frame = tablet.log.read(4)[0]
    assert (walk.rows, walk.removed, walk.earliest_ms) == (4, 2, 101)
    assert (frame.header.tag, frame.header.rows) == (SystemTag(SystemWork.TTL), 2)
    shown = read_changelog(tablet, 4).batch.select(["_change_type", "id", "s"]).to_pylist()
    assert [tuple(row.values()) for row in shown] == [("-D", 1, "old"), ("-D", 3, "older")]
    assert ids(tablet) == [2, 4]
    assert tablet.end == 6


def test_a_walk_goes_on_after_its_key_until_no_row_is_left(tablet):
    put(tablet, 0, *((n, n % 2 * 1_000, "") for n in range(10)))

    after, looked = b"", []
    while after is not None:
        walk = tablet.expire(AT, 0, after, 3)
        after = walk.after
        looked.append((walk.rows, walk.removed, walk.earliest_ms))

    assert looked == [(3, 2, 1_000), (3, 1, 1_000), (3, 2, 1_000), (1, 0, 1_000), (0, 0, None)]
    assert ids(tablet) == [1, 3, 5, 7, 9]


def test_where_nothing_has_expired_nothing_is_written(tablet):
    put(tablet, 0, (1, 100, "x"))

    walk = tablet.expire(AT, 99, b"", 10)

    assert (walk.removed, walk.earliest_ms, tablet.end) == (0, 100, 1)
    assert len(tablet.log.read(0)) == 1


def test_an_empty_bucket_has_nothing_to_expire(tablet):
    walk = tablet.expire(AT, 99, b"", 10)

    assert (walk.after, walk.rows, walk.removed, walk.earliest_ms) == (None, 0, 0, None)


def test_only_rows_that_are_stored_as_they_were_seen_go(tablet):
    put(tablet, 0, (1, 1, "same"), (2, 1, "updated"), (3, 1, "deleted"), (4, 1, "back"))
    view = tablet.pin_view()
    looked = look(view, AT, 100, 10)
    view.close()
    put(tablet, 1, (2, 1, "updated, and still old"), (4, 2, "other"))
    put(tablet, 2, (4, 1, "back"))
    delete(tablet, 3, 3)

    keys, values = unchanged(looked, tablet.get(looked.keys))

    assert keys == [looked.keys[0], looked.keys[3]]
    assert tablet.merger.codec.decode(values, ["id"]).column(0).to_pylist() == [1, 4]


class MeddlingKv(Kv):
    """A KV with somebody who does something, once, as soon as rows were read from a view."""

    meddle = None

    def pin(self, *bounds):
        pin = super().pin(*bounds)
        take = pin.take

        def taken(rows):
            found = take(rows)
            meddle, self.meddle = self.meddle, None
            if meddle is not None:
                meddle()
            return found

        pin.take = taken
        return pin


def elsewhere(work) -> None:
    """Let another thread do it: it must not have to wait for somebody who only looks."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def meddled(bench):
    bench.kv = MeddlingKv
    tablet = bench.open(merger(SPEC))
    put(tablet, 0, (1, 1, "old"), (2, 1, "old"))
    yield tablet
    tablet.close()


def test_a_put_between_look_and_lock_need_not_wait_and_its_row_stays(meddled):
    meddled._kv.meddle = lambda: elsewhere(lambda: put(meddled, 1, (1, 1_000, "new")))

    walk = meddled.expire(AT, 100, b"", 10)

    assert (walk.removed, ids(meddled)) == (1, [1])


def test_a_bucket_that_is_truncated_between_look_and_lock_loses_each_row_once(meddled):
    meddled._kv.meddle = lambda: elsewhere(meddled.truncate)

    walk = meddled.expire(AT, 100, b"", 10)

    assert (walk.removed, meddled.end) == (0, 4)
    assert read_changelog(meddled, 0).batch.column("_change_type").to_pylist() == ["+I", "+I", "-D", "-D"]


def test_a_bucket_that_is_dropped_between_look_and_lock_gets_no_frame(meddled):
    closing = threading.Thread(target=lambda: meddled.close(TableNotFound("it was dropped")))

    def drop():
        closing.start()
        while meddled.refusal is None:
            threading.Event().wait(0.001)

    meddled._kv.meddle = drop

    with pytest.raises(TableNotFound, match="it was dropped"):
        meddled.expire(AT, 100, b"", 10)
    closing.join(30)
    assert meddled.end == 2


def test_rows_of_older_versions_are_judged_by_the_same_column_under_any_name(bench):
    moved = altered(SPEC, [RenameColumn("at", "seen"), MoveColumn("seen", first=True), DropColumn("s")])
    again = altered(moved, [AddColumn(Column("at", "date"))])
    tablet = bench.open(merger(SPEC))
    put(tablet, 0, (1, 100, "x"), (2, 200, "x"))
    tablet.switch(merger(again, SPEC, moved))
    put(tablet, 1, (100, 3, None), (200, 4, 0), spec=again)

    walk = tablet.expire(AT, 100, b"", 10)

    assert (walk.removed, ids(tablet)) == (2, [2, 4])
    gone = read_changelog(tablet, 4).batch.select(["seen", "id", "at"]).column("id").to_pylist()
    assert gone == [1, 3]
    tablet.close()


def test_a_row_that_is_older_than_the_column_has_its_default(bench):
    for default, left in (("1970-01-01 00:00:00", [2]), ("2026-11-15 12:00:00", [1, 2]), (None, [1, 2])):
        bench.folder = bench.folder.with_name(f"default {left} {default}")
        spec = altered(SPEC, [AddColumn(Column("born", "timestamp_ltz(9)", default=default and default + "Z"))])
        tablet = bench.open(merger(SPEC))
        put(tablet, 0, (1, 100, "x"))
        tablet.switch(merger(spec, SPEC))
        put(tablet, 1, (2, 100, "x", 10**18), spec=spec)

        tablet.expire(spec.schema.column("born").id, 100, b"", 10)

        assert ids(tablet) == left
        tablet.close()


def test_rows_are_bounded_by_bytes_as_well(tablet):
    large = "x" * 2**20
    for seq in range(40):
        put(tablet, seq, (seq, 1, large))

    walk = tablet.expire(AT, 100, b"", 4_096)

    assert 0 < walk.rows == walk.removed < 40
    assert walk.after is not None


# --- what can go wrong


def test_a_frame_is_replayed_by_recovery(bench):
    tablet = bench.open(merger(SPEC))
    put(tablet, 0, (1, 1, "old"), (2, 1_000, "new"))
    tablet.expire(AT, 100, b"", 10)
    tablet.abandon()
    tablet.log.close()
    copied = bench.folder.with_name("copy")
    (copied / "log").mkdir(parents=True)
    for file in (bench.folder / "log").iterdir():
        (copied / "log" / file.name).write_bytes(file.read_bytes())
    bench.folder = copied

    again = bench.open(merger(SPEC))

    assert (ids(again), again.end) == ([2], 3)
    again.close()


def test_a_full_disk_removes_nothing_and_the_bucket_goes_on(bench):
    bench.disk = LossyDisk()
    tablet = bench.open(merger(SPEC))
    put(tablet, 0, (1, 1, "old"))
    bench.disk.capacity_bytes = bench.disk.used_bytes + 10

    with pytest.raises(DiskFull):
        tablet.expire(AT, 100, b"", 10)
    assert (ids(tablet), tablet.end) == ([1], 1)

    bench.disk.capacity_bytes = None
    assert tablet.expire(AT, 100, b"", 10).removed == 1
    assert ids(tablet) == []
    tablet.close()


def test_a_closed_tablet_expires_nothing(bench):
    tablet = bench.open(merger(SPEC))
    put(tablet, 0, (1, 1, "old"))
    tablet.close()

    with pytest.raises(Closed):
        tablet.expire(AT, 100, b"", 10)


def test_a_view_that_was_pinned_before_still_has_the_rows(tablet):
    put(tablet, 0, (1, 1, "old"), (2, 1, "old"))
    view = tablet.pin_view()

    tablet.expire(AT, 100, b"", 10)

    assert [row["id"] for row in read(view)] == [1, 2]
    view.close()
    assert ids(tablet) == []
