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
from kolk.model.write import Action

SCHEMA = kolk.Schema([kolk.Column("k", "string"), kolk.Column("v", "bigint")], "k")
KEYS = st.sampled_from([f"k{n}" for n in range(12)] + ["", "k", "k\0"])
KINDS = st.sampled_from([ChangeKind.INSERT, ChangeKind.UPDATE_BEFORE, ChangeKind.DELETE])
OWN = st.dictionaries(KEYS, st.tuples(KINDS, st.integers(0, 9)), max_size=6)
REMOVED = st.sets(KEYS, max_size=4)


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
