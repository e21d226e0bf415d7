"""A table that is altered again and again, driven at random beside a dict of rows, by handles of every age.

Whatever is put, looked up, scanned, deleted, followed, killed and built anew between the alters, by whomever: no
disagreement. Rows of every version lie side by side in the KV and in the log, for nothing is ever rewritten.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kolk
from kolk.errors import InvalidSchema, SchemaChanged
from kolk.model.types import Kind
from kolk.testing.copies import copy_of_one_moment
from kolk.testing.evolutions import evolved
from kolk.testing.oracle import TableModel, default_of, translated_row
from kolk.testing.strategies import data_types

COLUMNS = [
    kolk.Column("k", "string"),
    kolk.Column("n", "int"),
    kolk.Column("a", "int"),
    kolk.Column("b", "char(2)"),
    kolk.Column("f", "float", nullable=False, default=0.5),
    kolk.Column("v", "int"),
]
SCHEMA = kolk.Schema(COLUMNS, primary_key=["k", "n"])
CONFIG = kolk.EngineConfig(
    durability="process", log_segment_bytes=2000, kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22
)
STEPS = 60 if os.environ.get("KOLK_FULL") else 30
EXAMPLES = 150 if os.environ.get("KOLK_FULL") else 25
KINDS = (Kind.TINYINT, Kind.INT, Kind.BIGINT, Kind.FLOAT, Kind.DOUBLE, Kind.CHAR, Kind.STRING, Kind.BOOLEAN)
TYPES = data_types(max_depth=0).filter(lambda type: type.kind in KINDS)
VALUES = {
    Kind.TINYINT: [0, 5],
    Kind.SMALLINT: [0, 300],
    Kind.INT: [0, 1, 2**30],
    Kind.BIGINT: [0, 1, 2**40],
    Kind.FLOAT: [0.5, 1.5],
    Kind.DOUBLE: [0.5, 0.1],
    Kind.CHAR: ["", "x"],
    Kind.STRING: ["", "x", "a longer text than any char here"],
    Kind.BOOLEAN: [True, False],
}
KEYS = st.tuples(st.sampled_from(["", "a", "b\0"]), st.integers(0, 1))


class EvolvingTable(RuleBasedStateMachine):
    """Puts, deletes, reads, alters and restarts. ``infos`` are handles: what each knew when it was opened."""

    @initialize(
        engine=st.sampled_from(["default", "first_row", "versioned"]), image=st.sampled_from(["full", "wal"]),
        buckets=st.sampled_from([1, 3]),
    )  # fmt: skip
    def start(self, engine: str, image: str, buckets: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.lives = 0
        self.db = kolk.connect(self.folder / "0", config=CONFIG)
        options = {"table.changelog.image": image}
        if engine == "versioned":
            options["table.merge-engine.versioned.ver-column"] = "v"
        table = self.db.create_table(
            "t", SCHEMA, buckets=buckets, bucket_key=["k"], merge_engine=engine, options=options
        )
        self.infos = [table.info]
        self.versions = {1: SCHEMA}
        self.is_default = engine == "default"
        self.model = TableModel(SCHEMA, table.info.spec.options)
        self.changes: list[tuple[str, int, dict]] = []
        self.last_put = None
        self.last_alter = None

    # --- handles

    @property
    def current(self) -> kolk.Schema:
        return self.infos[-1].schema

    def handle(self, data) -> kolk.Table:
        """Some handle, the newest most often."""
        info = data.draw(st.sampled_from([*self.infos, *[self.infos[-1]] * len(self.infos)]))
        return kolk.Table(self.db._link, info)

    def row(self, data, schema: kolk.Schema, *, filled: bool = False) -> dict:
        key = dict(zip(schema.primary_key, data.draw(KEYS), strict=True))
        row = {}
        for column in schema.columns:
            values = st.sampled_from(VALUES[column.type.kind])
            row[column.name] = key.get(column.name, data.draw(st.none() | values if column.nullable else values))
        return {name: row[name] for name in row if not filled or schema.column(name).default is None}

    # --- writes

    @rule(data=st.data(), what=st.lists(st.sampled_from(["put"] * 6 + ["delete"] * 2 + ["truncate"]), max_size=4))
    def write(self, data, what: list[str]) -> None:
        """Several at once: a step is worth more the more has happened before it."""
        for each in what:
            match each:
                case "put":
                    self.put(data, *(data.draw(st.booleans()) for _ in range(3)))
                case "delete":
                    self.delete(data, *(data.draw(st.booleans()) for _ in range(2)))
                case _:
                    kolk.Table(self.db._link, self.infos[-1]).truncate()
                    self.note(self.model.clear())

    def put(self, data, overwrite: bool, whole: bool, leaves_out: bool) -> None:
        table = self.handle(data)
        schema, mode = table.schema, "overwrite" if overwrite else "accumulate"
        count = data.draw(st.integers(1, 4))
        if whole or not (self.is_default or overwrite):
            given = [self.row(data, schema, filled=leaves_out) for _ in range(count)]
            columns = None
        else:
            columns = data.draw(self.some_columns(schema))
            rows = [self.row(data, schema) for _ in range(count)]
            given = [{name: row[name] for name in (*schema.primary_key, *columns)} for row in rows]
            columns = columns if schema.value_columns else None  # nothing but its key is all of a row
        result = table.put(given, columns=columns, mode=mode)
        self.last_put = (table.info, given, columns, mode, result.tag)
        self.upsert(schema, given, columns, overwrite)

    def upsert(self, schema, given, columns, overwrite) -> None:
        """What the handle wrote, as the newest version has it."""
        names = {column.name: self.current.by_id.get(column.id) for column in schema.columns}
        if columns is None:
            rows = [translated_row({**defaults_of(schema), **row}, schema, self.current) for row in given]
        else:
            rows = [{names[name].name: row[name] for name in row if names[name] is not None} for row in given]
            columns = [names[name].name for name in columns if names[name] is not None]
        self.note(self.model.upsert(rows, columns, overwrite=overwrite))

    def delete(self, data, whole: bool, overwrite: bool) -> None:
        table = self.handle(data)
        schema = table.schema
        keys = data.draw(st.lists(KEYS, max_size=3))
        loose = [column.name for column in schema.value_columns if column.nullable]
        columns = None
        if not whole and loose and (self.is_default or overwrite):
            columns = data.draw(st.lists(st.sampled_from(loose), min_size=1, unique=True))
            columns = None if len(columns) == len(schema.value_columns) else columns
        table.delete(
            [dict(zip(schema.primary_key, key, strict=True)) for key in keys],
            columns,
            "overwrite" if overwrite else "accumulate",
        )
        now = self.current.by_id
        targets = None
        if columns is not None:
            targets = [now[schema.column(name).id].name for name in columns if schema.column(name).id in now]
        rows = [dict(zip(self.current.primary_key, key, strict=True)) for key in keys]
        if targets == []:
            self.note(self.delete_nothing(rows, overwrite))
        else:
            self.note(self.model.delete(rows, targets, overwrite=overwrite))

    def delete_nothing(self, rows, overwrite):
        """A partial delete of columns that are gone: only rows with nothing but their key go."""
        bare = [
            row
            for row in rows
            for key in [tuple(row.values())]
            if all(
                value is None
                for name, value in self.model.rows.get(key, {"": 0}).items()
                if name not in self.current.primary_key
            )
        ]
        return self.model.delete(bare, None, overwrite=overwrite)

    @rule()
    def retry_what_was_done_last(self) -> None:
        if self.last_put is not None:
            info, given, columns, mode, tag = self.last_put
            kolk.Table(self.db._link, info).put(given, columns=columns, mode=mode, tag=tag)
        if self.last_alter is not None:
            before, operations = self.last_alter
            assert kolk.Table(self.db._link, before).alter(operations) == self.current

    def note(self, changes) -> None:
        self.changes += [(kind, self.current.id, row) for kind, row in changes]

    # --- alters

    @rule(data=st.data())
    def alter_and_write(self, data) -> None:
        self.alter(data)
        self.put(data, *(data.draw(st.booleans()) for _ in range(3)))

    @rule(data=st.data())
    def alter(self, data) -> None:
        before = self.infos[-1]
        operations, spec = data.draw(evolved(before.spec, TYPES))
        table = kolk.Table(self.db._link, before)

        assert table.alter(operations) == spec.schema

        self.last_alter = (before, operations)
        self.infos = [*self.infos[-3:], table.info]
        self.versions[spec.schema.id] = spec.schema
        self.model.alter(spec.schema, spec.options)

    @rule(data=st.data())
    def alters_that_cannot_be_change_nothing(self, data) -> None:
        table = kolk.Table(self.db._link, self.infos[-1])
        with pytest.raises(InvalidSchema):
            table.drop_column(data.draw(st.sampled_from(self.current.primary_key)))
        if len(self.infos) > 1:
            with pytest.raises(SchemaChanged):
                kolk.Table(self.db._link, self.infos[0]).add_column("too_late", "int")
        assert table.refresh() == self.current

    # --- reads

    @rule(data=st.data())
    def read(self, data) -> None:
        self.get(data)
        self.scan(data)
        self.prefix(data, data.draw(st.sampled_from(["", "a", "b\0"])))
        self.scan_some_columns(data)

    def get(self, data) -> None:
        table = self.handle(data)
        keys = data.draw(st.lists(KEYS, max_size=4))
        rows = [dict(zip(table.schema.primary_key, key, strict=True)) for key in keys]
        expected = [self.model.rows[key] for key in keys if key in self.model.rows]

        self.check(table, expected, lambda: table.get(rows).to_pylist())
        for key in keys[:1]:
            self.check(table, expected[: key in self.model.rows], lambda: table.get([rows[0]]).to_pylist())

    def prefix(self, data, text: str) -> None:
        table = self.handle(data)
        expected = [row for key, row in sorted(self.model.rows.items()) if key[0] == text]

        self.check(table, expected, lambda: table.prefix({table.schema.primary_key[0]: text}).to_pylist())

    def scan(self, data) -> None:
        table = self.handle(data)

        def found():
            return sorted_rows(table.scan().to_arrow().to_pylist(), table.schema)

        self.check(table, [row for _, row in sorted(self.model.rows.items())], found)

    def check(self, table, expected, found) -> None:
        """What the newest version holds, as the handle's version can show it, or the error that it cannot."""
        try:
            shown = [translated_row(row, self.current, table.schema) for row in expected]
        except SchemaChanged:
            with pytest.raises(SchemaChanged):
                found()
        else:
            assert found() == shown

    def scan_some_columns(self, data) -> None:
        table = kolk.Table(self.db._link, self.infos[-1])
        names = data.draw(st.lists(st.sampled_from(self.current.names), min_size=1, unique=True))

        found = table.scan(names).to_arrow().to_pylist()

        expected = [{name: row[name] for name in names} for row in self.model.rows.values()]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))

    # --- restarts

    @rule(how=st.sampled_from(["close", "kill", "kill and lose the KV"]))
    def restart(self, how: str) -> None:
        """A killed one goes on from a copy of the files as they are now: what kill -9 leaves, with nothing flushed."""
        if how == "close":
            self.db.close()
            self.go_on()
            return
        after = self.folder / str(self.lives + 1)
        copy_of_one_moment(self.folder / str(self.lives), after)
        self.db.close()
        if how != "kill":
            for kv in after.glob("tables/*/*/*/kv"):
                shutil.rmtree(kv)
        self.lives += 1
        self.go_on()

    def go_on(self) -> None:
        self.db = kolk.connect(self.folder / str(self.lives), config=CONFIG)
        assert self.db.table("t").schema == self.current

    # --- always

    @invariant()
    def rows_agree(self) -> None:
        if hasattr(self, "infos"):
            found = self.db.table("t").scan().to_arrow().to_pylist()
            expected = [row for _, row in sorted(self.model.rows.items())]
            assert sorted_rows(found, self.current) == expected

    @invariant()
    def the_changelog_shows_every_change_in_the_version_that_it_was_written_with(self) -> None:
        if hasattr(self, "infos"):
            shown = []
            with self.db.table("t").changelog() as changelog:
                for batch in changelog:
                    assert batch.schema.names[4:] == list(changelog.schema.names)
                    shown += [(row, changelog.schema.id) for row in batch.to_pylist()]
            self.compare(
                [(row["_change_type"], id, self.own(row, self.versions[id])) for row, id in shown], self.changes
            )

    @invariant()
    def the_changelog_shows_every_change_in_the_newest_version_if_asked_to(self) -> None:
        if hasattr(self, "infos"):
            now = self.current
            shown = [row for batch in self.db.table("t").changelog(schema="latest") for row in batch.to_pylist()]
            expected = [(kind, now.id, translated_row(row, self.versions[id], now)) for kind, id, row in self.changes]
            self.compare([(row["_change_type"], now.id, self.own(row, now)) for row in shown], expected)

    @staticmethod
    def own(row: dict, schema: kolk.Schema) -> dict:
        return {name: row[name] for name in schema.names}

    def compare(self, found, expected) -> None:
        """Key by key: between buckets there is no order."""
        for key in {self.key(each) for each in (*found, *expected)}:
            assert [each for each in found if self.key(each) == key] == [
                each for each in expected if self.key(each) == key
            ]

    def key(self, change) -> tuple:
        _, version, row = change
        return tuple(row[name] for name in self.versions[version].primary_key)

    @staticmethod
    def some_columns(schema: kolk.Schema) -> st.SearchStrategy[list[str]]:
        names = [column.name for column in schema.value_columns]
        some = st.lists(st.sampled_from(names), unique=True) if names else st.just([])
        # All of them is a whole put, of which there are enough.
        return some.map(lambda chosen: chosen if len(chosen) < len(names) else chosen[:-1])

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)


def defaults_of(schema: kolk.Schema) -> dict:
    return {column.name: default_of(column) for column in schema.columns}


def sorted_rows(rows, schema) -> list[dict]:
    return sorted(rows, key=lambda row: tuple(row[name] for name in schema.primary_key))


TestEvolvingTable = EvolvingTable.TestCase
TestEvolvingTable.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
