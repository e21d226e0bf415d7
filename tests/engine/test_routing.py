"""From rows to buckets: a prepared write is cut so that nothing is lost, doubled or out of order."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kolk
from kolk.codec.bucketing import bucket_of
from kolk.engine.partitions import Partitions
from kolk.engine.routing import Routing
from kolk.errors import InvalidRows, PartitionNotFound, TooManyPartitions
from kolk.merge.engine import Merger
from kolk.model.ids import TableId
from kolk.model.table import TableInfo, TableSpec
from kolk.model.write import Action, Write
from kolk.storage.meta import Meta
from kolk.testing.clock import ManualClock

SCHEMA = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("id", "bigint"), kolk.Column("n", "int")], primary_key=["day", "id"]
)
DAYS = st.sampled_from(["a", "b", "c", "d-1"])
ROWS = st.lists(
    st.fixed_dictionaries({"day": DAYS, "id": st.integers(0, 20), "n": st.none() | st.integers(0, 9)}), max_size=40
)


@pytest.fixture(scope="module")
def meta(tmp_path_factory):
    with_meta = Meta(tmp_path_factory.mktemp("meta") / "meta.sqlite")
    yield with_meta
    with_meta.close()


def table(number, buckets, partition_by, options=None):
    spec = TableSpec.make("t", SCHEMA, buckets=buckets, partition_by=partition_by, options=options)
    return TableInfo(id=TableId(number), spec=spec, created_ms=0)


def routing(meta, most=1_000):
    return Routing(Partitions(meta, ManualClock(), most, [], check_table=lambda _: None))


def batch(rows):
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)


def prepared(info, rows, action=Action.UPSERT):
    names = SCHEMA.names if action is Action.UPSERT else SCHEMA.primary_key
    return Merger(SCHEMA, info.spec.options).prepare(Write(action=action, rows=batch(rows).select(list(names))))


@settings(deadline=None)
@given(ROWS, st.sampled_from([1, 3]), st.sampled_from([[], ["day"]]))
def test_every_row_comes_to_its_own_bucket_once_and_in_key_order(meta, rows, buckets, partition_by):
    info = table(buckets + 10 * len(partition_by), buckets, partition_by)
    write = prepared(info, rows)

    shares = routing(meta).split(info, write, 0)

    assert len({bucket for bucket, _ in shares}) == len(shares)
    got = [(row, bucket) for bucket, share in shares for row in share.rows.to_pylist()]
    assert sorted((row["day"], row["id"]) for row, _ in got) == [
        (row["day"], row["id"]) for row in write.rows.to_pylist()
    ]
    for bucket, share in shares:
        assert list(share.keys) == sorted(share.keys)
        assert len(share.keys) == share.rows.num_rows == len(share.values)
        key = tuple(SCHEMA.column(name) for name in info.spec.bucket_key)
        assert set(bucket_of(share.rows, key, buckets).tolist()) == {bucket.bucket}
        days = set(share.rows.column("day").to_pylist())
        assert bucket.partition_name == (f"day={days.pop()}" if partition_by else "")


def test_rows_of_one_bucket_are_not_copied(meta):
    info = table(30, 1, [])
    write = prepared(info, [{"day": "a", "id": 1, "n": 1}, {"day": "b", "id": 1, "n": 1}])

    ((_, share),) = routing(meta).split(info, write, 0)

    assert share is write


def test_the_buckets_of_ignored_deletes_are_asked_all_the_same(meta):
    info = table(31, 1, ["day"], {"table.delete.behavior": "ignore"})
    route = routing(meta)
    route._partitions.create(info, ["day=a", "day=b"])
    write = prepared(info, [{"day": day, "id": 1} for day in "abc"], Action.DELETE)

    shares = route.split(info, write, 0)

    assert [(bucket.name, share.rows.num_rows) for bucket, share in shares] == [("day=a/0", 0), ("day=b/0", 0)]


@settings(deadline=None)
@given(ROWS)
def test_deletes_come_to_the_partitions_that_there_are_and_make_none(meta, rows):
    info, route = table(36, 3, ["day"]), routing(meta)
    before = route._partitions.create(info, ["day=a", "day=b"])
    write = prepared(info, rows, Action.DELETE)

    shares = route.split(info, write, 0)

    assert route._partitions.of(info) is before
    got = [(row["day"], row["id"]) for _, share in shares for row in share.rows.to_pylist()]
    assert sorted(got) == sorted({(row["day"], row["id"]) for row in rows if row["day"] in "ab"})
    for bucket, share in shares:
        assert {f"day={day}" for day in share.rows.column("day").to_pylist()} == {bucket.partition_name}
        assert len(share.keys) == share.rows.num_rows


def test_a_partition_that_goes_while_another_is_made_is_made_anew(meta):
    class Fleeting(Partitions):
        def create(self, info, names):
            if "day=b" in names:
                self.remove(info, self.named(info, "day=a"), [0])
            return super().create(info, names)

    info = table(37, 1, ["day"])
    partitions = Fleeting(meta, ManualClock(), 1_000, [], check_table=lambda _: None)
    partitions.create(info, ["day=a"])

    shares = Routing(partitions).split(info, prepared(info, [{"day": day, "id": 1, "n": 1} for day in "ab"]), 0)

    assert [bucket.partition_name for bucket, _ in shares] == ["day=a", "day=b"]
    assert [bucket.partition for bucket, _ in shares] == [3, 4]


def test_reading_makes_no_partition(meta):
    info, route = table(32, 2, ["day"]), routing(meta)
    keys = batch([{"day": "a", "id": 1, "n": 1}]).select(["day", "id"])

    assert list(route.find(info, keys)) == []
    route.split(info, prepared(info, [{"day": "a", "id": 1, "n": 1}]), 0)

    ((bucket, places),) = route.find(info, keys)
    assert (bucket.partition_name, places) == ("day=a", None)


def test_a_value_that_cannot_stand_in_a_name_is_refused_on_writing_and_finds_nothing_on_reading(meta):
    info, route = table(33, 1, ["day"]), routing(meta)

    for odd in ("", "a/b", "a=b", "é", "__a", "x" * 201):
        with pytest.raises(InvalidRows, match="partition column day"):
            route.split(info, prepared(info, [{"day": odd, "id": 1, "n": 1}]), 0)
        assert list(route.find(info, batch([{"day": odd, "id": 1, "n": 1}]).select(["day", "id"]))) == []


def test_puts_make_no_partitions_where_they_may_not(meta):
    info = table(34, 1, ["day"], {"table.dynamic-partition.enabled": "false"})

    with pytest.raises(PartitionNotFound, match="add_partition"):
        routing(meta).split(info, prepared(info, [{"day": "a", "id": 1, "n": 1}]), 0)


def test_rows_of_more_partitions_than_a_table_may_have_are_refused_and_make_none(meta):
    info, route = table(35, 1, ["day"]), routing(meta, most=2)

    with pytest.raises(TooManyPartitions, match="at most 2"):
        route.split(info, prepared(info, [{"day": day, "id": 1, "n": 1} for day in "abc"]), 0)

    assert not route._partitions.of(info).partitions
