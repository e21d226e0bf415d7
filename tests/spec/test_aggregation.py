"""Aggregation tables as people use them, in this process and over the network.

The lines of Fluss's acceptance list that are about a table are named at the beginning of docstrings. C12 to C17 and
C21 to C23 are about other engines and images: ``test_rows.py``, ``test_model.py`` and ``test_evolution_model.py`` have
them. C19 and C20 are in ``test_once.py``. C24, C25 and D9 are about auto-increment columns, which Kolk does not have.
D1 to D6 are about Fluss's batches: here a put has one mode and one set of targets by its form. D29 is about Flink.
"""

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.spec.merged import counting, rows_of, shown

import kolk
from kolk.errors import AggregateOverflow, InvalidArgument, InvalidRows, TooLarge


@pytest.fixture
def people(db):
    schema = kolk.Schema(
        [
            kolk.Column("id", "int"),
            kolk.Column("age", "int", agg="sum"),
            kolk.Column("score", "bigint", agg="max"),
            kolk.Column("name", "string", agg="last_value"),
        ],
        ["id"],
    )
    return db.create_table("people", schema)


def person(*values) -> dict:
    return dict(zip(["id", "age", "score", "name"], values, strict=True))


def test_puts_are_merged_and_logged(people):
    """C18, C26, C34: +I for new keys, -U and +U for others."""
    people.put([person(1, 10, 100, "Alice"), person(2, 20, 200, "Bob")])
    people.put([person(1, 15, 150, "Alice2"), person(2, 25, 100, "Bob2")])
    people.put([person(3, 1, 1, None)])

    assert shown(people) == [
        ("+I", (1, 10, 100, "Alice")),
        ("+I", (2, 20, 200, "Bob")),
        ("-U", (1, 10, 100, "Alice")),
        ("+U", (1, 25, 150, "Alice2")),
        ("-U", (2, 20, 200, "Bob")),
        ("+U", (2, 45, 200, "Bob2")),
        ("+I", (3, 1, 1, None)),
    ]


def test_overwriting_replaces_and_merging_goes_on_from_there(people):
    """C27, C28, C29, C31, C33: for keys that are there and new ones."""
    people.put([person(1, 100, 1, "a"), person(2, 1, 1, "b")])
    people.put([person(1, 50, 2, "a")])

    people.put([person(1, 20, 1, "undone"), person(3, 5, 50, "new")], mode="overwrite")
    people.put([person(1, 10, 0, "b")])

    assert rows_of(people) == [(1, 30, 1, "b"), (2, 1, 1, "b"), (3, 5, 50, "new")]


def test_overwriting_deletes_and_partial_ones(people):
    """C30, C32: although the table ignores deletes; and only the targets are replaced."""
    people.put([person(1, 100, 1, "a"), person(2, 1, 1, "b")])

    people.delete([2])
    assert len(rows_of(people)) == 2
    people.delete([2], mode="overwrite")
    people.put([{"id": 1, "age": 7}], columns=["age"], mode="overwrite")

    assert rows_of(people) == [(1, 7, 1, "a")]
    assert shown(people)[2:] == [("-D", (2, 1, 1, "b")), ("-U", (1, 100, 1, "a")), ("+U", (1, 7, 1, "a"))]


def test_partial_puts_and_deletes_are_seen_by_lookups(db):
    """C1 to C8, C10, C11, D7, D8: keys are always given; the last partial delete removes the row."""
    schema = kolk.Schema(
        [kolk.Column("id", "int"), kolk.Column("a", "int", agg="sum"), kolk.Column("b", "int", agg="sum")], ["id"]
    )
    table = db.create_table("t", schema, options={"table.delete.behavior": "allow"})

    table.put([{"id": 1, "a": 1}, {"id": 1, "a": 2}], columns=["a"])
    assert table.get_one(id=1) == {"id": 1, "a": 3, "b": None}
    table.add_column(kolk.Column("c", "int", agg="max"))
    table.put([{"id": 1, "b": 5}], columns=["b"])
    table.delete([1], columns=["a"])
    assert table.get_one(id=1) == {"id": 1, "a": None, "b": 5, "c": None}
    table.delete([1], columns=["b"])
    assert table.get_one(id=1) is None

    with pytest.raises(InvalidRows, match="no column 'id'"):
        table.put([{"a": 1}], columns=["a"])
    with pytest.raises(InvalidArgument, match="there is no column 'nope'"):
        table.put([{"id": 1, "nope": 1}], columns=["nope"])


def test_a_put_answers_where_the_log_ends(people):
    """D10, D11: one end for all rows of a put; what changes nothing leaves it where it was."""
    assert people.put([person(1, 1, 1, "a")]).offsets == {"0": 1}
    assert people.put([person(1, 1, 1, "a"), person(2, 1, 1, "b")]).offsets == {"0": 4}
    assert people.put([person(1, 0, None, "a")]).offsets == {"0": 4}
    assert people.delete([1], mode="overwrite").offsets == {"0": 5}


def test_a_column_with_a_function_is_added(people):
    """D21, D22: it adds up from there; a table that does not aggregate has none."""
    people.put([person(1, 10, 1, "a")])
    people.add_column(kolk.Column("extra", "bigint", agg="sum"))

    people.put([person(1, 10, 1, "a") | {"extra": 100}, person(1, 10, 1, "a") | {"extra": 200}])

    assert rows_of(people) == [(1, 30, 1, "a", 300)]


def test_a_table_that_does_not_aggregate_gets_no_function(pages):
    """D22: adding one is refused, and so is taking values back."""
    with pytest.raises(kolk.errors.InvalidSchema, match="merge engine is default"):
        pages.add_column(kolk.Column("n", "bigint", agg="sum"))
    with pytest.raises(InvalidArgument, match="not an aggregation table"):
        pages.retract([{"page": "/", "pv": 1, "title": ""}])
    with pytest.raises(InvalidArgument, match="not an aggregation table"):
        pages.preaggregate([{"page": "/", "pv": 1, "title": ""}])
    with pytest.raises(InvalidRows, match="mode='merge_state' is for"):
        pages.put([{"page": "/", "pv": 1, "title": ""}], mode="merge_state")


def test_a_table_is_made_and_shown_over_the_network_with_its_functions(db):
    """D16, D25, D28: functions are part of the schema, with their parameters, in every form."""
    schema = kolk.Schema(
        [
            kolk.Column("id", "int"),
            kolk.Column("at", "timestamp(3)", agg="max"),
            kolk.Column("who", "string", agg="max_by", params={"by": "at"}),
            kolk.Column("words", "string", agg="listagg", params={"delimiter": "it's; \n"}),
        ],
        ["id"],
    )
    made = db.create_table("t", schema)

    again = db.table("t")
    assert again.schema.columns == made.schema.columns
    assert [str(column.agg) for column in again.schema.value_columns[:2]] == ["max", "max_by(by = at)"]
    assert again.schema.column("words").agg.get("delimiter") == "it's; \n"
    assert not any(key.startswith("fields.") for key in again.info.spec.options.text)


# --- what can go wrong


def test_a_put_that_is_tried_again_is_counted_once(db):
    counts = counting(db)
    rows = [{"k": 1, "seen": "x", "total": 5}]
    tag = counts.put(rows).tag

    counts.put(rows, tag=tag)
    counts.put([{**row, "_change_type": "-D"} for row in rows], tag=tag)

    assert rows_of(counts) == [(1, 1, 1, 5)]


def test_a_sum_that_does_not_fit_is_an_error_and_nothing_of_the_put_is_written(db):
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "tinyint", agg="sum")], ["k"])
    table = db.create_table("t", schema)
    table.put([{"k": 1, "v": 100}])

    for rows in ([(1, 28), (2, 1)], [(2, 100), (2, 100)]):
        with pytest.raises(AggregateOverflow, match="does not fit a tinyint"):
            table.put([{"k": k, "v": v} for k, v in rows])

    assert rows_of(table) == [(1, 100)]
    table.widen_column("v", "smallint")
    table.put([{"k": 1, "v": 28}])
    assert rows_of(table) == [(1, 128)]


def test_a_list_that_outgrows_a_row_is_refused_before_it_is_made(db):
    """A long delimiter makes gigabytes of little."""
    schema = kolk.Schema(
        [kolk.Column("k", "int"), kolk.Column("v", "string", agg="listagg", params={"delimiter": "é" * 1000})], ["k"]
    )
    table = db.create_table("t", schema)

    with pytest.raises(TooLarge):
        table.put(pa.table({"k": pa.array([1] * 600_000, pa.int32()), "v": ["a"] * 600_000}))
    assert rows_of(table) == []


def test_columns_that_belong_together_are_put_together(db):
    schema = kolk.Schema(
        [
            kolk.Column("k", "int"),
            kolk.Column("at", "int", agg="max"),
            kolk.Column("who", "string", agg="max_by", params={"by": "at"}),
            kolk.Column("n", "bigint", agg="count_rows"),
        ],
        ["k"],
    )
    table = db.create_table("t", schema)
    table.put([{"k": 1, "at": 2, "who": "b"}, {"k": 1, "at": 2, "who": "c"}, {"k": 1, "at": None, "who": "d"}])

    for columns in (["at"], ["who"]):
        with pytest.raises(InvalidRows, match="gives both of them or neither"):
            table.put([{"k": 1, columns[0]: None}], columns=columns)
    table.rename_column("at", "moment")
    table.put([{"k": 1, "moment": 1, "who": "a"}])

    assert rows_of(table) == [(1, 2, "c", 4)]


def test_a_scan_a_lookup_and_a_snapshot_show_states(db):
    schema = kolk.Schema(
        [kolk.Column("a", "int"), kolk.Column("b", "int"), kolk.Column("v", "bigint", agg="sum")], ["a", "b"]
    )
    table = db.create_table("t", schema, buckets=2, bucket_key=["a"])
    for _ in range(3):
        table.put([{"a": each % 2, "b": each, "v": each} for each in range(10)])
    table.take_snapshot()
    lease = table.lease()
    table.put([{"a": 0, "b": 0, "v": 1}])

    assert table.prefix(a=1).column("v").to_pylist() == [3 * each for each in range(1, 10, 2)]
    assert sorted(table.scan(where="v > 20").to_arrow().column("v").to_pylist()) == [21, 24, 27]
    assert table.get([(0, 0)]).column("v").to_pylist() == [1]
    for source in ("snapshot", lease):
        assert sum(table.scan(source=source).to_arrow().column("v").to_pylist()) == 135
    lease.close()


def test_rows_expire_by_a_column_that_is_merged(timed):
    """The newest time of a row is what it lives by."""
    schema = kolk.Schema(
        [
            kolk.Column("k", "int"),
            kolk.Column("at", "timestamp_ltz(3)", agg="max"),
            kolk.Column("v", "int", agg="sum"),
        ],
        ["k"],
    )
    table = timed.db.create_table("t", schema, options={"table.kv.ttl": "1 h", "table.kv.ttl.column": "at"})
    now = datetime.fromtimestamp(timed.clock.now_ms() / 1000, UTC)

    table.put([{"k": 1, "at": now, "v": 1}])
    table.put([{"k": 1, "at": None, "v": 1}])

    assert rows_of(table)[0][2] == 2


def test_puts_and_retractions_that_race_with_alters_are_all_counted_once(db):
    schema = kolk.Schema(
        [
            kolk.Column("k", "int"),
            kolk.Column("v", "int", agg="sum"),
            kolk.Column("n", "bigint", agg="count_rows"),
        ],
        ["k"],
    )
    table = db.create_table("t", schema, buckets=3)
    rounds, writers = 15, 3
    failures: list[BaseException] = []

    def write() -> None:
        handle = db.table("t")
        old = "v" in handle.schema.names
        try:
            for _ in range(rounds):
                name = "v" if old else handle.schema.names[1]
                rows = [{"k": k, name: 1} for k in range(20)]
                handle.put(rows)
                handle.put([{**row, "_change_type": kind} for row in rows for kind in ("-U", "+U", "+U")])
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for each in range(8):
        table.add_column(kolk.Column(f"x{each}", "int", agg="sum", default=each))
        if each == 3:
            table.widen_column("v", "bigint")
        if each == 5:
            table.drop_column("x0")
    for thread in threads:
        thread.join()

    assert failures == []
    found = db.table("t").scan().to_arrow()
    assert found.column("v").to_pylist() == [2 * rounds * writers] * 20
    assert found.column("n").to_pylist() == [2 * rounds * writers] * 20
