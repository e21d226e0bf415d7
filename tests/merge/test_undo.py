"""What an owner's frames have changed: the first change of a key counts, and what the store removed since is gone."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk.codec.versions import RowCodecs
from kolk.merge.changes import change_schema
from kolk.merge.undo import Images
from kolk.model.change import ChangeKind
from kolk.model.defaults import default_values
from kolk.model.write import Action

SCHEMA = kolk.Schema([kolk.Column("k", "string"), kolk.Column("v", "bigint")], "k")
KEYS = st.sampled_from([f"k{n}" for n in range(12)] + ["", "k", "k\0"])
KINDS = st.sampled_from([ChangeKind.INSERT, ChangeKind.UPDATE_BEFORE, ChangeKind.DELETE])
OWN = st.dictionaries(KEYS, st.tuples(KINDS, st.integers(0, 9)), max_size=6)
REMOVED = st.sets(KEYS, max_size=4)


def batch(schema, *columns):
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def frame(changes):
    """Rows behind their kinds; what an update makes comes after what it replaces."""
    rows = []
    for key, (kind, value) in sorted(changes.items()):
        rows.append((kind, key, value))
        if kind is ChangeKind.UPDATE_BEFORE:
            rows.append((ChangeKind.UPDATE_AFTER, key, value + 100))
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(change_schema(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=change_schema(SCHEMA))


def modelled(frames):
    """The value that comes back for each key, None for those that go."""
    found = {}
    for frame in frames:
        if isinstance(frame, dict):
            for key, (kind, value) in frame.items():
                found.setdefault(key, None if kind is ChangeKind.INSERT else value)
        else:
            found |= dict.fromkeys(frame & found.keys())
    return found


@pytest.mark.parametrize("parts", [1, 4])
@given(frames=st.lists(OWN | REMOVED, max_size=8))
def test_the_first_change_of_a_key_counts_unless_the_store_removed_it_since(parts, frames):
    found, seen = {}, []
    for part in range(parts):
        images = Images(RowCodecs(SCHEMA), None, part, parts)
        for each in frames:
            if isinstance(each, dict):
                images.take(frame(each), SCHEMA)
            else:
                images.remove(frame(dict.fromkeys(each, (ChangeKind.DELETE, 0))), SCHEMA)
        for write, olds in images.writes(lambda keys: pa.nulls(len(keys), pa.binary())):
            keys = write.rows.column("k").to_pylist()
            assert len(olds) == len(keys)
            assert keys == sorted(keys), "in the order of the keys"
            values = [None] * len(keys) if write.action is Action.DELETE else write.rows.column("v").to_pylist()
            found |= dict(zip(keys, values, strict=True))
            seen += keys

    assert found == modelled(frames)
    assert len(seen) == len(set(seen)), "each key is in one part"


@pytest.mark.parametrize(
    ("type", "default"),
    [
        ("int", 7),
        ("double", "NaN"),
        ("date", "0000-01-01"),
        ("time(9)", "12:00:00.123456789"),
        ("timestamp(3)", "0000-01-01 00:00:00.000"),
        ("timestamp(9)", "2026-01-01 00:00:00.123456789"),
        ("timestamp_ltz(9)", "2026-01-01 00:00:00.000000001Z"),
    ],
)
def test_every_default_is_nobodys_and_comes_back_as_it_is_also_if_python_has_no_such_value(type, default):
    """A row that the owner made goes, unless others wrote to it: then the own column has its default again."""
    columns = [("k", "int", None), ("own", type, default), ("n", "int", None), ("theirs", type, default)]
    schema = kolk.Schema([kolk.Column(name, type, default=default) for name, type, default in columns], "k")
    unset = default_values(schema.column("own").default, schema.column("own").type, 3)
    nothing = pa.nulls(3, unset.type)
    inserted = batch(change_schema(schema), [int(ChangeKind.INSERT)] * 3, [1, 2, 3], nothing, [None] * 3, unset)
    now = RowCodecs(schema).encode(batch(schema.arrow, [1, 2, 3], nothing, [None, 5, None], unset)).to_pylist()
    images = Images(RowCodecs(schema), [schema.column("own").id])
    images.take(inserted, schema)

    restored, gone = (write for write, _ in images.writes(lambda _: pa.array([*now[:2], None], pa.binary())))

    assert gone.rows.column("k").to_pylist() == [1, 3]
    assert restored.rows.column("k").to_pylist() == [2]
    texts = [restored.rows.column(name).cast(pa.string()).to_pylist() for name in ("own", "theirs")]
    assert texts == [unset[:1].cast(pa.string()).to_pylist()] * 2


def test_a_deleted_row_comes_back_with_the_defaults_of_columns_that_are_never_null():
    theirs = kolk.Column("theirs", "time(9)", nullable=False, default="12:00:00.123456789")
    schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("own", "array<int>"), theirs], "k")
    unset = default_values(theirs.default, theirs.type, 2)
    images = Images(RowCodecs(schema), [schema.column("own").id])
    kinds = [int(ChangeKind.DELETE), int(ChangeKind.INSERT)]
    images.take(batch(change_schema(schema), kinds, [1, 2], [[5], [6]], unset), schema)

    (restored, _), _ = images.writes(lambda _: pa.nulls(2, pa.binary()))

    assert restored.rows.column("own").to_pylist() == [[5]]
    assert restored.rows.column("theirs").equals(unset[:1])
