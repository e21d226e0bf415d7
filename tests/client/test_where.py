"""What people say to select rows: a dict means what the same said in text means."""

import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.client.where import predicate_of
from kolk.errors import InvalidArgument
from kolk.model.predicate import Predicate
from kolk.model.schema import Column, Schema
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, data_types, schemas

SCHEMA = Schema(
    [Column("id", "int"), Column("region", "string"), Column("price", "decimal(10, 2)"), Column("f", "float")]
)


def said(where: object) -> str:
    return str(predicate_of(where, SCHEMA))


def test_a_dict_is_equalities_that_all_hold():
    assert (
        said({"id": 1, "region": ["eu", "us"], "price": None}) == "id = 1 AND region IN ('eu', 'us') AND price IS NULL"
    )
    assert said({"region": ["eu", None]}) == "region IS NULL OR region = 'eu'"
    assert said({"region": ["eu", None], "id": 1}) == "(region IS NULL OR region = 'eu') AND id = 1"
    assert said({"region": [None]}) == "region IS NULL"
    assert said({"region": []}) == "FALSE"
    assert said({}) == "TRUE"
    assert predicate_of(None, SCHEMA) is None


def test_values_become_the_type_of_the_column_exactly():
    assert said({"price": 5}) == "price = 5"
    assert said({"f": 0.1}) == "f = 0.1"
    assert said({"id": pa.scalar(7, pa.int64())}) == "id = 7"
    assert said({"id": pa.array([7, 8], pa.int16())}) == "id IN (7, 8)"
    assert said({"f": float("nan")}) == "f = 'NaN'"
    assert said({"f": -0.0}) == "f = 0.0"


@pytest.mark.parametrize(
    "where", [{"id": 2**40}, {"id": 1.5}, {"id": "1"}, {"price": 0.1}, {"f": 1e300}, {"region": b"eu"}]
)
def test_values_that_the_column_cannot_hold_are_refused(where):
    with pytest.raises(InvalidArgument, match=next(iter(where))):
        predicate_of(where, SCHEMA)


def test_so_many_values_are_refused():
    where = {"id": list(range(6_000)), "price": list(range(6_000))}

    with pytest.raises(InvalidArgument, match="at most 10,000 values in its INs, not 12,000"):
        predicate_of(where, SCHEMA)
    with pytest.raises(InvalidArgument, match="at most 10,000 values of 'id'"):
        predicate_of({"id": list(range(10_001))}, SCHEMA)


scalars = data_types(max_depth=0)


def _with_one_zero_and_one_nan(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The oracle compares bits; a predicate does not."""
    arrays = [
        pc.if_else(pc.is_nan(array), pa.scalar(math.nan, array.type), pc.add(array, pa.scalar(0.0, array.type)))
        if pa.types.is_floating(array.type)
        else array
        for array in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


@given(st.data())
def test_the_rows_with_the_values_given_are_selected_and_no_others(data):
    schema = data.draw(schemas(max_key=1, max_values=2, value_types=scalars))
    batch = data.draw(batches(schema, max_rows=8))
    chosen = data.draw(st.lists(st.integers(0, batch.num_rows - 1), max_size=4)) if batch.num_rows else []
    where = {name: batch.column(name).take(pa.array(chosen, pa.int64())) for name in schema.names[:2]}

    predicate = predicate_of(where, schema)

    rows = plain_rows(_with_one_zero_and_one_nan(batch))
    values = {name: [rows[place][name] for place in chosen] for name in where}
    assert predicate.mask(batch).tolist() == [all(row[name] in values[name] for name in where) for row in rows]
    assert Predicate.parse(str(predicate), schema) == predicate
