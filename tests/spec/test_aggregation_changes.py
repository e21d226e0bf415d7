"""Changes, retractions and states, put into aggregation tables and into others."""

import polars
import pyarrow as pa
import pytest
from tests.spec.merged import counting, rows_of, shown

import kolk
from kolk.errors import InvalidRows
from kolk.testing.oracle import TableModel


@pytest.fixture
def counts(db):
    return counting(db)


def test_states_that_are_made_before_are_merged_as_if_their_rows_were_put(counts):
    events = [{"k": each % 5, "seen": None if each % 3 else "x", "total": each} for each in range(30)]
    expected = [(k, 6, 2, sum(range(k, 30, 5))) for k in range(5)]

    for part in (events[:7], [], events[7:]):
        counts.put(counts.preaggregate(part), mode="merge_state")

    assert rows_of(counts) == expected


def test_states_without_a_count_of_rows_are_refused(counts):
    """Nobody knows any more how many rows they were made of."""
    with pytest.raises(InvalidRows, match="no column 'n'"):
        counts.put([{"k": 1, "seen": 2, "total": 3}], mode="merge_state")


def test_nothing_is_a_put_of_nothing(counts):
    counts.put([])
    counts.retract([])

    assert counts.preaggregate([]).num_rows == 0
    assert counts.preaggregate([], columns=["total"]).schema.names == ["k", "total"]
    assert shown(counts) == []


def test_changes_over_several_buckets_are_taken_from_the_keys_that_they_are_about(counts):
    rows = [{"k": k, "seen": "x", "total": k} for k in range(100)]
    counts.put(rows)

    counts.put([{**row, "_change_type": "-U" if row["k"] % 2 else "+U"} for row in rows])
    counts.retract([{**row, "k": row["k"] + 1000} for row in rows])

    assert rows_of(counts) == [(k, 0, 0, 0) if k % 2 else (k, 2, 2, 2 * k) for k in range(100)]


def test_the_changelog_of_one_table_is_put_into_another(db, counts):
    """Sums of a table of orders follow what happens to the orders."""
    orders = db.create_table(
        "orders",
        kolk.Schema([kolk.Column("id", "int"), kolk.Column("k", "int"), kolk.Column("total", "int")], ["id"]),
    )
    sums = db.create_table(
        "sums",
        kolk.Schema(
            [
                kolk.Column("k", "int"),
                kolk.Column("n", "bigint", agg="count_rows"),
                kolk.Column("total", "int", agg="sum"),
            ],
            ["k"],
        ),
        buckets=2,
    )
    copy = db.create_table("copy", orders.schema)
    orders.put([{"id": each, "k": each % 3, "total": each} for each in range(10)])
    orders.put([{"id": 4, "k": 2, "total": 40}, {"id": 5, "k": 2, "total": 2**31 - 1}])
    orders.put([{"id": 5, "k": 2, "total": -5}])
    orders.delete([0, 7])

    batches = list(orders.changelog())
    list(copy.put_stream(batches))
    list(sums.put_stream(batch.drop_columns(["id"]) for batch in batches))

    assert rows_of(copy) == rows_of(orders)
    live = rows_of(orders)
    assert rows_of(sums) == [
        (k, sum(row[1] == k for row in live), sum(row[2] for row in live if row[1] == k)) for k in range(3)
    ]


@pytest.mark.parametrize("words", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_changes_come_in_every_form_of_text(counts, words):
    rows = {"k": pa.array([1] * 3, pa.int32()), "seen": ["x"] * 3, "total": pa.array([5] * 3, pa.int32())}

    counts.put(pa.table(rows | {"_change_type": pa.array(["+I", "insert", "-D"]).cast(words)}))
    counts.put(polars.DataFrame(rows | {"_change_type": ["+I"] * 3}))
    counts.put(polars.DataFrame(rows | {"_change_type": polars.Series(["delete"] * 3, dtype=polars.Categorical)}))

    assert rows_of(counts) == [(1, 1, 1, 5)]


def test_changes_come_by_the_words_of_spark_and_by_numbers(counts):
    counts.put([{"k": 1, "seen": "x", "total": 5, "_change_type": word} for word in ("INSERT", "update_postimage")])
    counts.put(
        pa.table(
            {
                "k": pa.array([1, 1], pa.int32()),
                "seen": ["x", None],
                "total": pa.array([5, 1], pa.int32()),
                "_change_type": pa.array([3, 1], pa.uint64()),
                "_log_offset": [0, 1],
            }
        )
    )

    assert rows_of(counts) == [(1, 0, 1, 4)]
    for wrong in (pa.array([4], pa.int64()), pa.array([300], pa.int64()), pa.array([None], pa.int8()),
                  pa.array(["+i"]), pa.array([1.0]), pa.array([1]).dictionary_encode(),
                  pa.array(["no"]).dictionary_encode()):  # fmt: skip
        with pytest.raises(InvalidRows, match=r"change"):
            counts.put(pa.table({"k": pa.array([1], pa.int32()), "seen": ["x"], "total": pa.array([5], pa.int32()),
                                 "_change_type": wrong}))  # fmt: skip


@pytest.mark.parametrize("engine", ["default", "first_row", "versioned"])
def test_changes_of_tables_of_other_engines(db, engine):
    """-U says nothing, -D deletes where deletes do."""
    options = {"table.merge-engine.versioned.ver-column": "v"} if engine == "versioned" else {}
    table = db.create_table(
        "t",
        kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "int")], ["k"]),
        merge_engine=engine,
        options=options,
    )
    table.put([{"k": 1, "v": 1}, {"k": 2, "v": 1}])

    changes = [(1, 1, "-U"), (1, 2, "+U"), (2, 1, "-D"), (9, 1, "-D"), (3, 1, "+I"), (3, 1, "-D"), (3, 5, "+I")]
    table.put([{"k": k, "v": v, "_change_type": kind} for k, v, kind in changes])

    assert (
        rows_of(table)
        == {
            "default": [(1, 2), (3, 5)],
            "first_row": [(1, 1), (2, 1), (3, 1)],
            "versioned": [(1, 2), (2, 1), (3, 5)],
        }[engine]
    )
    table.put([{"k": 1, "v": 0, "_change_type": "-D"}], mode="overwrite")
    assert all(row[0] != 1 for row in rows_of(table))


def test_a_log_table_takes_no_changes(db):
    log = db.create_table("log", kolk.Schema([kolk.Column("k", "int")]))

    with pytest.raises(InvalidRows, match="_change_type"):
        log.put(pa.table({"k": pa.array([1], pa.int32()), "_change_type": ["+I"]}))


def test_rows_that_only_go_make_no_partition(db):
    schema = kolk.Schema(
        [kolk.Column("day", "string"), kolk.Column("k", "int"), kolk.Column("v", "int", agg="sum")], ["day", "k"]
    )
    table = db.create_table("t", schema, partition_by=["day"], buckets=2)
    table.put([{"day": "a", "k": k, "v": k} for k in range(6)])

    table.retract([{"day": "b", "k": 1, "v": 1}])
    table.put([{"day": day, "k": 1, "v": 1, "_change_type": kind} for day, kind in
               [("c", "-D"), ("d", "+I"), ("a", "-U")]])  # fmt: skip

    assert [partition.name for partition in table.partitions()] == ["day=a", "day=d"]
    assert rows_of(table) == [("a", 0, 0), ("a", 1, 0), *[("a", k, k) for k in range(2, 6)], ("d", 1, 1)]


def test_a_sum_that_becomes_another_zero_has_changed_for_the_model_too(db):
    """What has changed is judged by the bytes that are stored, and -0.0 has others than 0.0."""
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("half", "double", agg="sum")], ["k"])
    table = db.create_table("t", schema)
    model = TableModel(schema, table.info.spec.options)
    row = {"k": 1, "half": -0.0}

    table.put([row])
    table.retract([row])
    expected = [kind for given in ("+I", "-D") for kind, _ in model.change([(given, row)])]

    assert [kind for kind, *_ in shown(table)] == ["+I", "-U", "+U"] == expected
