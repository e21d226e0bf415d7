"""A bucket goes on in a new version of its table between two puts: what was prepared for the old one is not lost."""

import pyarrow as pa
import pytest
from tests.tablet.views import read

from kolk.errors import SchemaChanged
from kolk.merge.append import Appender
from kolk.merge.engine import Merger
from kolk.model.evolution import AddColumn, DropColumn, RenameColumn, altered
from kolk.model.ids import PlainTag
from kolk.model.schema import Column, Schema
from kolk.model.table import TableSpec
from kolk.model.write import Action, Write
from kolk.tablet.changelog import read_changelog

OLD = TableSpec.make("t", Schema([Column("k", "int"), Column("a", "int"), Column("b", "int")], "k"))
NEW = altered(OLD, [AddColumn(Column("c", "int", default=5)), RenameColumn("k", "key"), DropColumn("b")])


def merger(spec: TableSpec, *earlier: TableSpec) -> Merger:
    return Merger(spec.schema, spec.options, [before.schema for before in earlier])


def write(spec: TableSpec, **columns: list[int]) -> Write:
    arrays = [pa.array(values, pa.int32()) for values in columns.values()]
    rows = pa.RecordBatch.from_arrays(arrays, schema=spec.schema.arrow)
    return Write(action=Action.UPSERT, rows=rows, schema_id=spec.schema.id)


def stored(tablet) -> list[dict]:
    view = tablet.pin_view()
    try:
        return read(view)
    finally:
        view.close()


def test_a_put_prepared_before_an_alter_is_prepared_again_in_its_pass(bench):
    tablet = bench.open(merger(OLD))
    prepared = tablet.merger.prepare(write(OLD, k=[1, 2], a=[10, 20], b=[0, 0]))

    tablet.switch(merger(NEW, OLD))
    tablet.put(prepared, PlainTag(1, 0))

    assert stored(tablet) == [{"key": 1, "a": 10, "c": 5}, {"key": 2, "a": 20, "c": 5}]
    assert read_changelog(tablet, 0).schema_id == NEW.schema.id


def test_the_same_holds_for_a_log_table(bench):
    old = TableSpec.make("t", Schema([Column("a", "int")]))
    new = altered(old, [AddColumn(Column("b", "int", default=1), first=True)])
    tablet = bench.open(Appender(old.schema))
    prepared = tablet.merger.prepare(write(old, a=[1]))

    tablet.switch(Appender(new.schema, [old.schema]))
    tablet.put(prepared, PlainTag(1, 0))

    page = read_changelog(tablet, 0)
    assert page.batch.select(["b", "a"]).to_pylist() == [{"b": 1, "a": 1}]


def test_a_switch_never_goes_back(bench):
    tablet = bench.open(merger(NEW, OLD))

    tablet.switch(merger(OLD))

    assert tablet.merger.schema == NEW.schema


def test_a_put_of_a_version_that_the_bucket_does_not_know_is_refused(bench):
    tablet = bench.open(merger(OLD))

    with pytest.raises(SchemaChanged):
        tablet.merger.prepare(write(NEW, key=[1], a=[1], c=[1]))


def test_a_view_pinned_before_a_switch_shows_what_it_pinned(bench):
    tablet = bench.open(merger(OLD))
    tablet.put(tablet.merger.prepare(write(OLD, k=[1], a=[10], b=[0])), PlainTag(1, 0))
    view = tablet.pin_view()

    tablet.switch(merger(NEW, OLD))
    tablet.put(tablet.merger.prepare(write(NEW, key=[1], a=[11], c=[0])), PlainTag(1, 1))

    assert read(view) == [{"k": 1, "a": 10, "b": 0}]
    view.close()
    assert stored(tablet) == [{"key": 1, "a": 11, "c": 0}]
