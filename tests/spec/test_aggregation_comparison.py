"""A million events in a table that aggregates them, and in pandas: the same numbers."""

import importlib.util

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kolk
from kolk.merge.aggregates.binding import aggregator_of

EVENTS, KEYS, BATCH, USERS = 1_000_000, 100_000, 50_000, 5_000


@pytest.fixture(scope="module")
def events() -> pd.DataFrame:
    rng = np.random.default_rng(20_261_115)
    value = rng.integers(-1000, 1000, EVENTS).astype("float64")
    value[rng.random(EVENTS) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "k": rng.integers(0, KEYS, EVENTS),
            "value": value,
            "user": rng.integers(0, USERS, EVENTS),
        }
    )


@pytest.fixture
def db(tmp_path):
    config = kolk.EngineConfig(durability="process")
    with kolk.connect(tmp_path / "data", config=config) as database:
        yield database


def put_all(table: kolk.Table, rows: pa.Table) -> None:
    for _ in table.put_stream(rows.to_batches(max_chunksize=BATCH)):
        pass


def test_sums_extremes_counts_and_last_values_are_those_of_pandas(db, events):
    schema = kolk.Schema(
        [
            kolk.Column("k", "bigint"),
            kolk.Column("total", "bigint", agg="sum"),
            kolk.Column("highest", "bigint", agg="max"),
            kolk.Column("lowest", "bigint", agg="min"),
            kolk.Column("seen", "bigint", agg="count"),
            kolk.Column("rows", "bigint", agg="count_rows"),
            kolk.Column("last", "bigint", agg="last_value_ignore_nulls"),
        ],
        ["k"],
    )
    table = db.create_table("t", schema, buckets=2)
    value = pa.array(events["value"], pa.float64(), from_pandas=True).cast(pa.int64())
    given = {"k": pa.array(events["k"], pa.int64())}

    put_all(table, pa.table(given | dict.fromkeys(["total", "highest", "lowest", "seen", "last"], value)))

    found = table.scan().to_arrow().to_pandas().set_index("k").sort_index()
    by_key = events.groupby("k")
    whole = by_key["value"]
    pd.testing.assert_series_equal(found["total"], whole.sum(min_count=1), check_names=False, check_dtype=False)
    pd.testing.assert_series_equal(found["highest"], whole.max(), check_names=False, check_dtype=False)
    pd.testing.assert_series_equal(found["lowest"], whole.min(), check_names=False, check_dtype=False)
    pd.testing.assert_series_equal(found["seen"], whole.count(), check_names=False, check_dtype=False)
    pd.testing.assert_series_equal(found["rows"], by_key.size(), check_names=False, check_dtype=False)
    pd.testing.assert_series_equal(found["last"], whole.last(), check_names=False, check_dtype=False)


def test_distinct_counts_are_those_of_pandas(db, events):
    visitors = kolk.Column("visitors", "bytes", agg="rbm32", params={"input": "bigint"})
    schema = kolk.Schema([kolk.Column("k", "bigint"), visitors], ["k"])
    try:
        aggregator_of(visitors, schema)
    except KeyError:
        pytest.skip("bitmaps are not bound yet")
    if importlib.util.find_spec("kolk.functions") is None:
        pytest.skip("bitmaps cannot be counted yet")
    functions = importlib.import_module("kolk.functions")
    some = events.head(EVENTS // 5)
    table = db.create_table("t", schema, buckets=2)

    put_all(table, pa.table({"k": pa.array(some["k"], pa.int64()), "visitors": pa.array(some["user"], pa.int64())}))

    found = table.scan().to_arrow()
    counts = functions.rb_cardinality(found.column("visitors"))
    expected = some.groupby("k")["user"].nunique()
    shown = pd.Series(np.asarray(counts), index=found.column("k").to_numpy()).sort_index()
    pd.testing.assert_series_equal(shown, expected, check_names=False, check_dtype=False, check_index_type=False)
