"""Values of several versions of a schema, read together: as if each were read by itself and then translated."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.row import RowCodec
from kolk.codec.versions import RowCodecs
from kolk.errors import Corrupted
from kolk.model.schema import Column, Schema
from kolk.model.translation import translated
from kolk.testing.evolutions import histories
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import batches, data_types, schemas

TYPES = data_types(max_depth=1)


def mixed(data):
    """Versions, and some values of each in any order: (versions, [(schema, batch of one row)])."""
    versions = data.draw(histories(data.draw(schemas()), TYPES))
    rows = []
    for schema in versions:
        batch = data.draw(batches(schema, max_rows=4))
        rows += [(schema, batch.slice(place, 1)) for place in range(batch.num_rows)]
    return versions, data.draw(st.permutations(rows))


def encoded(rows):
    return pa.array([RowCodec(schema).encode(batch)[0].as_py() for schema, batch in rows], pa.binary())


@given(st.data())
def test_mixed_versions_are_decoded_as_each_by_itself_and_translated(data):
    versions, rows = mixed(data)
    codecs = RowCodecs(versions[-1], versions[:-1])
    names = data.draw(st.none() | st.lists(st.sampled_from(versions[-1].names), unique=True, min_size=1))

    found = codecs.decode(encoded(rows), names)

    found.validate(full=True)
    assert found.schema == versions[-1].arrow_of(names)
    shown = versions[-1].columns if names is None else [versions[-1].column(name) for name in names]
    expected = [plain_rows(translated(batch, schema, shown))[0] for schema, batch in rows]
    assert plain_rows(found) == expected


@given(st.data())
def test_one_value_of_any_version_is_decoded_as_among_others(data):
    versions, rows = mixed(data)
    codecs = RowCodecs(versions[-1], versions[:-1])
    values = encoded(rows)

    ones = [codecs.decode_one_as(versions[-1], value) for value in values.to_pylist()]

    assert [plain_rows(one)[0] for one in ones] == plain_rows(codecs.decode(values))


@given(st.data())
def test_rows_brought_to_the_current_version_are_equal_bytes_if_they_are_equal_rows(data):
    versions, rows = mixed(data)
    codecs = RowCodecs(versions[-1], versions[:-1])
    holes = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    values = pa.array(
        [None if hole else value for hole, value in zip(holes, encoded(rows).to_pylist(), strict=True)], pa.binary()
    )

    current = codecs.to_current(values)

    assert current.is_null().to_pylist() == holes
    expected = [
        None if hole else RowCodec(versions[-1]).encode(translated(batch, schema, versions[-1].columns))[0].as_py()
        for hole, (schema, batch) in zip(holes, rows, strict=True)
    ]
    assert current.to_pylist() == expected


@given(st.data())
def test_the_bytes_of_a_key_do_not_depend_on_what_its_columns_are_called(data):
    versions = data.draw(histories(data.draw(schemas(min_key=1)), TYPES))
    codecs = RowCodecs(versions[-1], versions[:-1])
    rows = data.draw(batches(versions[0]))

    first = codecs.keys_of(versions[0]).encode(rows)
    last = codecs.keys_of(versions[-1]).encode(translated(rows, versions[0], versions[-1].columns))

    assert first.to_pylist() == last.to_pylist()


OLD = Schema([Column("k", "int"), Column("a", "int")], "k")
NEW = Schema([Column("k", "int", id=0)], "k", id=2, next_column_id=2)


def test_an_older_handle_is_not_shown_what_was_dropped_even_where_it_is_still_stored():
    values = RowCodec(OLD).encode(pa.record_batch({"k": [1], "a": [5]}, OLD.arrow))

    shown = RowCodecs(NEW, [OLD]).decode_as(OLD, values)

    assert shown.to_pylist() == [{"k": 1, "a": None}]


def test_columns_that_no_stored_row_has_are_decoded_for_as_many_rows():
    newer = Schema([Column("k", "int", id=0), Column("z", "int", default=9, id=7)], "k", id=3)
    values = RowCodec(OLD).encode(pa.record_batch({"k": [1, 2], "a": [5, 6]}, OLD.arrow))

    assert RowCodecs(newer, [OLD, NEW]).decode(values, ["z"]).to_pylist() == [{"z": 9}, {"z": 9}]


@pytest.mark.parametrize("value", [b"", b"\x07", b"\x07\x00", b"\x09\x00\x00\x01\x00\x00\x00"])
def test_a_value_of_a_version_that_never_was_is_refused(value):
    codecs = RowCodecs(NEW, [OLD])

    with pytest.raises(Corrupted):
        codecs.decode(pa.array([value], pa.binary()))
    with pytest.raises(Corrupted):
        codecs.decode_one_as(NEW, value)
    with pytest.raises(Corrupted):
        codecs.to_current(pa.array([value], pa.binary()))
