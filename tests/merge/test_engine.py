"""The merge engines, against a model that does one row at a time."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import DeletesDisabled, InvalidRows, TooLarge
from kolk.merge.changes import Changes, writes_of
from kolk.merge.engine import ROW_BYTES_MAX, Merger
from kolk.model.change import SYMBOLS
from kolk.model.options import MergeMode, TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType
from kolk.model.write import Action, Write
from kolk.testing.oracle import TableModel, plain_rows
from kolk.testing.strategies import Keys, batches, schemas

PAGES = Schema([Column("page", "string"), Column("pv", "bigint"), Column("title", "string")], ["page"])
FULL = {"table.changelog.image": "full"}


class Bench:
    """A merger over a dict of bytes, and the model beside it."""

    def __init__(self, schema: Schema, options: dict[str, str] | None = None) -> None:
        parsed = TableOptions.parse(options or {}, schema)
        self.schema = schema
        self.merger = Merger(schema, parsed)
        self.model = TableModel(schema, parsed)
        self.stored: dict[bytes, bytes] = {}

    def write(self, write: Write) -> Changes:
        prepared = self.merger.prepare(write)
        assert prepared.keys == sorted(set(prepared.keys))
        olds = pa.array([self.stored.get(key) for key in prepared.keys], pa.binary())
        changes = self.merger.merge(prepared, olds)
        self.stored.update(zip(changes.writes.keys, changes.writes.values, strict=True))
        for key in changes.writes.deletes:
            del self.stored[key]
        return changes

    def rows(self) -> list[dict]:
        values = pa.array([self.stored[key] for key in sorted(self.stored)], pa.binary())
        return plain_rows(self.merger.codec.decode(values))

    def expected_rows(self) -> list[dict]:
        return [self.model.rows[key] for key in sorted(self.model.rows)]


def shown(changes: Changes) -> list[tuple[str, dict]]:
    if changes.rows is None:
        return []
    changes.rows.validate(full=True)
    rows = plain_rows(changes.rows)
    return [(SYMBOLS[row.pop("__op")], row) for row in rows]


def upsert(rows: pa.RecordBatch, columns=None, mode=MergeMode.ACCUMULATE) -> Write:
    return Write(action=Action.UPSERT, rows=rows, columns=columns, mode=mode)


def delete(rows: pa.RecordBatch, columns=None, mode=MergeMode.ACCUMULATE) -> Write:
    return Write(action=Action.DELETE, rows=rows, columns=columns, mode=mode)


def pages(*rows: tuple) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(PAGES.names, row, strict=False)) for row in rows], PAGES.arrow)


def keys(*names: str) -> pa.RecordBatch:
    return pa.record_batch({"page": pa.array(names, pa.string())}, pa.schema([PAGES.columns[0].arrow]))


def some_columns(draw, schema: Schema, nullable_only: bool) -> tuple[str, ...]:
    """Target columns that a partial write may name: every column left out, or nulled, must be nullable."""
    required = [column.name for column in schema.value_columns if not column.nullable]
    free = [column.name for column in schema.value_columns if column.nullable]
    chosen = draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    return tuple(chosen) if nullable_only else tuple(required + chosen)


@given(st.data())
def test_the_default_engine_agrees_with_the_model(data):
    schema = data.draw(schemas(min_values=1, max_key=2))
    image = data.draw(st.sampled_from(["full", "wal"]))
    bench = Bench(schema, {"table.changelog.image": image})

    for _ in range(4):
        kind = data.draw(st.sampled_from(["put", "delete", "partial put", "partial delete"]))
        targets = None
        if kind.startswith("partial"):
            targets = some_columns(data.draw, schema, nullable_only=kind == "partial delete")
        if kind.endswith("put"):
            chosen = schema.names if targets is None else [*schema.primary_key, *targets]
            names = [name for name in schema.names if name in chosen]
            batch = data.draw(batches(schema, columns=names, keys=Keys.REPEATED))
            changes, expected = (
                bench.write(upsert(batch, targets)),
                bench.model.upsert(plain_rows(batch), targets),
            )
        else:
            batch = data.draw(batches(schema, columns=schema.primary_key, keys=Keys.REPEATED))
            changes, expected = (
                bench.write(delete(batch, targets)),
                bench.model.delete(plain_rows(batch), targets),
            )

        assert shown(changes) == expected
        assert bench.rows() == bench.expected_rows()


@given(st.data())
def test_first_row_and_versioned_agree_with_the_model(data):
    versions = st.sampled_from(["int", "bigint", "timestamp(3)", "timestamp(9)", "timestamp_ltz(9)"]).map(
        DataType.parse
    )
    base = data.draw(schemas(min_values=0, max_key=2))
    schema = Schema([*base.columns, Column("ver", data.draw(versions))], base.primary_key)
    engine = data.draw(
        st.sampled_from(
            [
                {"table.merge-engine": "first_row"},
                {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "ver"},
            ]
        )
    )
    image = data.draw(st.sampled_from(["full", "wal"]))
    bench = Bench(schema, {**engine, "table.changelog.image": image})

    for _ in range(4):
        mode = data.draw(st.sampled_from([MergeMode.ACCUMULATE, MergeMode.OVERWRITE]))
        overwrite = mode is MergeMode.OVERWRITE
        if data.draw(st.booleans()):
            batch = data.draw(batches(schema, keys=Keys.REPEATED))
            changes = bench.write(upsert(batch, mode=mode))
            expected = bench.model.upsert(plain_rows(batch), overwrite=overwrite)
        else:
            batch = data.draw(batches(schema, columns=schema.primary_key, keys=Keys.REPEATED))
            changes = bench.write(delete(batch, mode=mode))
            expected = bench.model.delete(plain_rows(batch), overwrite=overwrite)

        assert shown(changes) == expected
        assert bench.rows() == bench.expected_rows()


@given(st.data())
def test_replaying_the_changes_of_a_put_does_to_the_kv_what_the_put_did(data):
    schema = data.draw(schemas(min_values=1, max_key=2))
    bench = Bench(schema)
    bench.write(upsert(data.draw(batches(schema, keys=Keys.REPEATED))))
    changes = bench.write(upsert(data.draw(batches(schema, keys=Keys.REPEATED))))

    if changes.rows is not None:
        replayed = writes_of(changes.rows, bench.merger.keys, bench.merger.codec)
        assert list(replayed.keys) == list(changes.writes.keys)
        assert list(replayed.values) == list(changes.writes.values)
        assert list(replayed.deletes) == list(changes.writes.deletes)


def test_a_put_emits_one_net_change_per_key_in_key_order():
    bench = Bench(PAGES)
    bench.write(upsert(pages(("/b", 1, "B"))))

    changes = bench.write(upsert(pages(("/b", 5, "B"), ("/a", 1, "A"), ("/b", 9, "B"))))

    assert [(kind, row["page"], row["pv"]) for kind, row in shown(changes)] == [
        ("+I", "/a", 1),
        ("-U", "/b", 1),
        ("+U", "/b", 9),
    ]


def test_an_update_that_changes_nothing_emits_nothing():
    bench = Bench(PAGES)
    bench.write(upsert(pages(("/", 1, None))))

    assert bench.write(upsert(pages(("/", 1, None)))).rows is None


def test_the_wal_image_of_a_whole_row_put_is_an_update_without_reading_the_old_row():
    bench = Bench(PAGES, {"table.changelog.image": "WAL"})

    prepared = bench.merger.prepare(upsert(pages(("/", 1, "x"))))

    assert prepared.blind
    assert [kind for kind, _ in shown(bench.write(upsert(pages(("/", 1, "x")))))] == ["+U"]
    assert [kind for kind, _ in shown(bench.write(delete(keys("/"))))] == ["-D"]
    assert bench.write(delete(keys("/"))).rows is None


def test_a_partial_put_keeps_the_other_columns_and_never_takes_them_from_the_input():
    bench = Bench(PAGES)
    bench.write(upsert(pages(("/", 1, "home"))))

    changes = bench.write(upsert(pages(("/", 2, "ignored"), ("/new", 3, "ignored")).select(["page", "pv"]), ("pv",)))

    assert [kind for kind, _ in shown(changes)] == ["-U", "+U", "+I"]
    assert bench.rows() == [
        {"page": "/", "pv": 2, "title": "home"},
        {"page": "/new", "pv": 3, "title": None},
    ]


def test_partial_deletes_of_all_columns_finally_remove_the_row():
    bench = Bench(PAGES)
    bench.write(upsert(pages(("/", 1, "home"))))

    first = bench.write(delete(keys("/"), ("pv",)))
    second = bench.write(delete(keys("/"), ("title",)))

    assert [kind for kind, _ in shown(first)] == ["-U", "+U"]
    assert [kind for kind, _ in shown(second)] == ["-D"]
    assert bench.rows() == []


def test_a_put_of_the_key_alone_inserts_once():
    bench = Bench(PAGES)

    first = bench.write(upsert(keys("/"), ()))
    again = bench.write(upsert(keys("/"), ()))

    assert [kind for kind, _ in shown(first)] == ["+I"]
    assert again.rows is None


@pytest.mark.parametrize("engine", ["first_row", "versioned"])
def test_engines_without_partial_updates_refuse_them(engine):
    extra = {"table.merge-engine.versioned.ver-column": "pv"} if engine == "versioned" else {}
    bench = Bench(PAGES, {"table.merge-engine": engine, **extra})

    with pytest.raises(InvalidRows, match=f"{engine} merge engine"):
        bench.write(upsert(keys("/"), ()))


def test_disabled_deletes_are_an_error_and_ignored_ones_are_not():
    disabled = Bench(PAGES, {"table.delete.behavior": "disable"})
    ignoring = Bench(PAGES, {"table.delete.behavior": "ignore"})
    ignoring.write(upsert(pages(("/", 1, "x"))))

    with pytest.raises(DeletesDisabled):
        disabled.write(delete(keys("/")))
    assert ignoring.write(delete(keys("/"))).rows is None
    assert len(ignoring.rows()) == 1


def test_overwriting_deletes_even_where_deletes_are_ignored():
    bench = Bench(PAGES, {"table.merge-engine": "first_row"})
    bench.write(upsert(pages(("/", 1, "x"))))

    assert [kind for kind, _ in shown(bench.write(delete(keys("/"), mode=MergeMode.OVERWRITE)))] == ["-D"]


def test_a_partial_write_may_not_leave_out_or_null_a_required_column():
    schema = Schema([Column("id", "int"), Column("a", "int", nullable=False), Column("b", "int")], ["id"])
    bench = Bench(schema)
    rows = pa.record_batch({"id": [1], "b": [2]}, pa.schema([schema.columns[0].arrow, schema.columns[2].arrow]))

    with pytest.raises(InvalidRows, match="'a' is NOT NULL, so a partial put"):
        bench.write(upsert(rows, ("b",)))
    with pytest.raises(InvalidRows, match="'a' is NOT NULL, so a partial delete"):
        bench.write(delete(rows.select(["id"]), ("a",)))


def test_a_row_over_the_limit_is_refused():
    bench = Bench(PAGES)

    with pytest.raises(TooLarge, match="limit"):
        bench.write(upsert(pages(("/", 1, "x" * ROW_BYTES_MAX))))
