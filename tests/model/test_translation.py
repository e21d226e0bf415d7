"""Rows from one version of a schema to another: by column id, whatever happened to names, places and types."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import SchemaChanged
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.translation import translated, translated_write
from kolk.model.write import Action, Write, expected_columns
from kolk.testing.evolutions import histories
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, data_types, schemas

TYPES = data_types(max_depth=1)


@given(st.data())
def test_evolving_step_by_step_is_evolving_at_once(data):
    versions = data.draw(histories(data.draw(schemas()), TYPES))
    rows = data.draw(batches(versions[0]))

    stepwise = rows
    for source, target in pairwise(versions):
        stepwise = translated(stepwise, source, target.columns)
    at_once = translated(rows, versions[0], versions[-1].columns)

    at_once.validate(full=True)
    assert at_once.schema == versions[-1].arrow
    assert plain_rows(stepwise) == plain_rows(at_once)


@given(st.data())
def test_a_column_keeps_its_values_under_any_name_and_place(data):
    versions = data.draw(histories(data.draw(schemas()), TYPES))
    first, last = versions[0], versions[-1]
    rows = data.draw(batches(first))

    found = translated(rows, first, last.columns)

    for column in last.columns:
        if column.id in first.by_id and first.by_id[column.id].type == column.type:
            before = plain_rows(rows.select([first.by_id[column.id].name]))
            after = plain_rows(found.select([column.name]))
            assert [[*row.values()] for row in before] == [[*row.values()] for row in after]


@given(st.data())
def test_what_an_older_handle_wrote_it_reads_back_unless_columns_went(data):
    versions = data.draw(histories(data.draw(schemas()), TYPES))
    first, last = versions[0], versions[-1]
    rows = data.draw(batches(first))
    left = [column for column in first.columns if column.id in last.by_id]

    back = translated(translated(rows, first, last.columns), last, left)

    assert plain_rows(back) == plain_rows(rows.select([column.name for column in left]))


@given(st.data())
def test_a_translated_write_is_one_that_the_newer_version_takes(data):
    versions = data.draw(histories(data.draw(schemas()), TYPES))
    first, last = versions[0], versions[-1]
    values = [column.name for column in first.value_columns]
    targets = data.draw(st.none() | st.lists(st.sampled_from(values), unique=True)) if values else None
    wanted = expected_columns(first, Action.UPSERT, None if targets is None else tuple(targets), MergeMode.ACCUMULATE)
    rows = data.draw(batches(first, columns=[column.name for column in wanted]))
    columns = None if targets is None else tuple(targets)

    write = translated_write(Write(action=Action.UPSERT, rows=rows, columns=columns, schema_id=first.id), first, last)

    expected = expected_columns(last, Action.UPSERT, write.columns, MergeMode.ACCUMULATE)
    assert write.rows.schema.names == [column.name for column in expected]
    assert write.schema_id in (first.id, last.id)
    kept = {first.column(name).id for name in targets or ()} & set(last.by_id)
    assert columns is None or {last.column(name).id for name in write.columns} == kept


WIDE = Schema([Column("k", "int"), Column("i", "bigint"), Column("f", "double"), Column("t", "string"),
               Column("d", "decimal(9, 2)"), Column("n", "int")], "k", id=2)  # fmt: skip
NARROW = Schema([Column("k", "int", id=0), Column("i", "int", id=1), Column("f", "float", id=2),
                 Column("t", "char(2)", id=3), Column("d", "decimal(4, 2)", id=4),
                 Column("n", "int", nullable=False, id=5)], "k")  # fmt: skip


def one_row(row):
    arrays = [pa.array([row[field.name]], field.type) for field in WIDE.arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=WIDE.arrow)


FITTING = {"k": 1, "i": 5, "f": 0.5, "t": "ab", "d": 1, "n": 1}


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("i", 2**31, "widened"),
        ("f", 0.1, "widened"),
        ("t", "abc", "widened"),
        ("d", 100, "widened"),
        ("n", None, "may be null"),
    ],
)
def test_a_value_that_an_older_handle_cannot_hold_is_told_and_not_cut(name, value, what):
    row = FITTING | {name: value}
    rows = pa.RecordBatch.from_arrays(
        [pa.array([row[field.name]], field.type) for field in WIDE.arrow], schema=WIDE.arrow
    )

    with pytest.raises(SchemaChanged, match=rf"'{name}'.*{what}.*refresh"):
        translated(rows, WIDE, NARROW.columns)


def test_values_that_fit_are_shown_to_an_older_handle_and_nan_is_one():
    row = FITTING | {"f": float("nan")}
    rows = pa.RecordBatch.from_arrays(
        [pa.array([row[field.name]], field.type) for field in WIDE.arrow], schema=WIDE.arrow
    )

    shown = translated(rows, WIDE, NARROW.columns)

    assert shown.schema == NARROW.arrow
    assert shown.column("i").to_pylist() == [5]
    assert shown.column("f").is_valid().to_pylist() == [True]


def test_a_dropped_column_is_null_to_an_older_handle_or_its_default_and_never_made_up():
    newer = Schema([Column("k", "int", id=0)], "k", id=2, next_column_id=9)
    rows = pa.record_batch({"k": pa.array([1, 2], pa.int32())}, newer.arrow)

    shown = translated(rows, newer, [Column("a", "int", id=5), Column("b", "int", nullable=False, default=3, id=6)])

    assert shown.to_pylist() == [{"a": None, "b": 3}] * 2
    with pytest.raises(SchemaChanged, match=r"'c' was dropped.*NOT NULL.*refresh"):
        translated(rows, newer, [Column("c", "int", nullable=False, id=7)])
