"""Aggregation tables, driven at random beside a dict: no disagreement, whatever is put, taken back, altered, killed."""

import os
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kolk
from kolk.errors import PartialPut, StaleTag
from kolk.model.evolution import altered
from kolk.testing.copies import copy_of_one_moment
from kolk.testing.oracle import TableModel, default_of, translated_row

CONFIG = kolk.EngineConfig(
    durability="process", log_segment_bytes=2000, kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22
)
STEPS = 50 if os.environ.get("KOLK_FULL") else 20
EXAMPLES = 150 if os.environ.get("KOLK_FULL") else 10

# Columns by name: the functions that can take values back, and those that cannot.
RETRACTABLE = [
    kolk.Column("total", "int", agg="sum", params={"overflow": "wrap"}),
    kolk.Column("cents", "decimal(20, 2)", agg="sum"),
    kolk.Column("half", "double", agg="sum", default=0.5),
    kolk.Column("last", "string", agg="last_value"),
    kolk.Column("known", "string", agg="last_value_ignore_nulls"),
    kolk.Column("n", "bigint", agg="count", params={"input": "string"}),
    kolk.Column("rows", "bigint", agg="count_rows"),
    kolk.Column("bits", "smallint", agg="bit_xor"),
]
LASTING = [
    kolk.Column("highest", "int", agg="max"),
    kolk.Column("lowest", "char(2)", agg="min"),
    kolk.Column("at", "int", agg="max"),
    kolk.Column("who", "string", agg="max_by", params={"by": "at"}),
    kolk.Column("where", "string", agg="max_by", params={"by": "at"}),
    kolk.Column("first", "string", agg="first_value"),
    kolk.Column("words", "string", agg="listagg", params={"delimiter": "|"}),
    kolk.Column("set", "string", agg="listagg", params={"distinct": True}),
    kolk.Column("all", "boolean", agg="bool_and"),
    kolk.Column("any", "boolean", agg="bool_or"),
    kolk.Column("mask", "tinyint", agg="bit_or", default=1),
    kolk.Column("times", "bigint", agg="product", params={"overflow": "wrap"}),
]
VALUES = {
    "int": [0, 1, -5, 2**31 - 1],
    "bigint": [0, 1, -5, 2**62],
    "smallint": [0, 1, -1, 300],
    "tinyint": [0, 1, 2, -128],
    "double": [0.5, -0.0, 1e10],
    "string": ["", "x", "y", "x,y", "|", "é\0"],
    "char(2)": ["", "x", "zé"],
    "boolean": [True, False],
    "decimal(20, 2)": [Decimal("0.00"), Decimal("1.25"), Decimal("-7.00")],
}
KEYS = st.sampled_from(["", "a", "b\0", "cc"])
KINDS = st.sampled_from(["+I", "+U", "-U", "-D"])


def values_of(column: kolk.Column) -> st.SearchStrategy:
    """What may be given to a column of these types, or of one that they were widened to."""
    text = str(column.input)
    if text.startswith("decimal"):
        return st.none() | st.sampled_from(VALUES["decimal(20, 2)"])
    return st.none() | st.sampled_from(VALUES[text])


class Aggregating(RuleBasedStateMachine):
    """Puts of values and states, partial ones, changes, deletes, alters and restarts; by old handles, too."""

    @initialize(
        takes_back=st.booleans(),
        deletes=st.sampled_from(["allow", "ignore"]),
        buckets=st.sampled_from([1, 3]),
    )
    def start(self, takes_back: bool, deletes: str, buckets: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.lives = 0
        self.db = kolk.connect(self.folder / "0", config=CONFIG)
        schema = kolk.Schema([kolk.Column("k", "string"), *(RETRACTABLE if takes_back else LASTING)], ["k"])
        table = self.db.create_table("t", schema, buckets=buckets, options={"table.delete.behavior": deletes})
        self.takes_back = takes_back
        self.infos = [table.info]
        self.model = TableModel(schema, table.info.spec.options)
        self.changes: list[tuple[str, dict]] = []
        self.last = None
        self.added = 0

    # --- handles

    @property
    def current(self) -> kolk.Schema:
        return self.infos[-1].schema

    def handle(self, data) -> kolk.Table:
        """Some handle, the newest most often."""
        place = data.draw(st.integers(0, 2 * len(self.infos) - 1))
        return kolk.Table(self.db._link, self.infos[min(place, len(self.infos) - 1)])

    def columns(self, data, schema: kolk.Schema) -> list[str] | None:
        """The targets of a put: all columns or some, those that belong together either both or not."""
        if data.draw(st.booleans()):
            return None
        chosen = data.draw(st.lists(st.sampled_from([column.name for column in schema.value_columns]), unique=True))
        groups = [
            {column.name, column.agg.get("by")} for column in schema.value_columns if column.agg.get("by") is not None
        ]
        for _ in groups:
            for group in groups:
                chosen += [name for name in group if group & {*chosen} and name not in chosen]
        return chosen if len(chosen) < len(schema.value_columns) else None

    def rows(self, data, schema: kolk.Schema, columns: list[str] | None) -> list[dict]:
        """Rows as people put them, some columns of which may be left out if no targets are named."""
        given = [column for column in schema.value_columns if columns is None or column.name in columns]
        if columns is None and data.draw(st.booleans()):
            given = [column for column in given if column.default is None and column.agg.name != "count_rows"]
        count = data.draw(st.integers(0, 5))
        return [
            {"k": data.draw(KEYS)} | {column.name: data.draw(values_of(column)) for column in given}
            for _ in range(count)
        ]

    def meant(
        self, schema: kolk.Schema, columns: list[str] | None, rows: list[dict], *, counts: bool = True
    ) -> tuple[list[str], list[dict]]:
        """The targets of a put in the newest version, and its rows with nulls where nothing is given."""
        given = {*rows[0]} if rows else {*schema.names}
        wanted = [
            column.id
            for column in schema.value_columns
            if (columns is None or column.name in columns) and (column.name in given or column.agg.name == "count_rows")
        ]
        # What an old handle does not know: a whole row is counted all the same, and what it decides about is null.
        is_whole = counts and len(wanted) == len(schema.value_columns)
        now = self.current
        known = [now.by_id[id].name for id in wanted if id in now.by_id]
        wanted += [
            column.id
            for column in now.value_columns
            if column.id not in schema.by_id
            and (column.agg.get("by") in known or (is_whole and column.agg.name == "count_rows"))
        ]
        names = {id: schema.by_id[id].name if id in schema.by_id else None for id in wanted}
        columns_now = [column for column in now.value_columns if column.id in names]
        translated = [
            {"k": row["k"]} | {column.name: row.get(names[column.id]) for column in columns_now} for row in rows
        ]
        return [column.name for column in columns_now], translated

    # --- writes

    @rule(data=st.data())
    def put(self, data) -> None:
        table = self.handle(data)
        columns = self.columns(data, table.schema)
        rows = self.rows(data, table.schema, columns)

        result = table.put(rows, columns=columns)

        self.last = (table.info, rows, columns, "accumulate", result.tag)
        targets, meant = self.meant(table.schema, columns, rows)
        self.changes += self.model.upsert(meant, targets)

    @rule(data=st.data())
    def put_states(self, data) -> None:
        """Aggregated here or there, it is the same."""
        table = self.handle(data)
        columns = self.columns(data, table.schema)
        rows = self.rows(data, table.schema, columns)

        table.put(table.preaggregate(rows, columns), columns=columns, mode="merge_state")

        targets, meant = self.meant(table.schema, columns, rows, counts=False)
        self.changes += self.model.upsert(meant, targets)

    @rule(data=st.data())
    def put_changes(self, data) -> None:
        table = self.handle(data)
        columns = self.columns(data, table.schema)
        rows = self.rows(data, table.schema, columns)
        kinds = KINDS if self.takes_back else st.sampled_from(["+I", "+U"])
        changes = [(data.draw(kinds), row) for row in rows]

        table.put([{**row, "_change_type": kind} for kind, row in changes], columns=columns)

        targets, meant = self.meant(table.schema, columns, rows)
        self.changes += self.model.change(
            [(kind, row) for (kind, _), row in zip(changes, meant, strict=True)], targets
        )  # fmt: skip

    @rule(data=st.data())
    def retract(self, data) -> None:
        if not self.takes_back:
            return
        table = self.handle(data)
        columns = self.columns(data, table.schema)
        rows = self.rows(data, table.schema, columns)

        table.retract(rows, columns)

        targets, meant = self.meant(table.schema, columns, rows)
        self.changes += self.model.change([("-D", row) for row in meant], targets)

    @rule(data=st.data(), is_change=st.booleans())
    def overwrite(self, data, is_change: bool) -> None:
        table = kolk.Table(self.db._link, self.infos[-1])
        columns = self.columns(data, self.current)
        given = [column for column in self.current.value_columns if columns is None or column.name in columns]
        states = [
            {"k": data.draw(KEYS)}
            | {
                column.name: data.draw(
                    st.none() | st.sampled_from([3, 4]) if column.agg.name.startswith("count") else values_of(column)
                )
                for column in given
            }
            for _ in range(data.draw(st.integers(0, 3)))
        ]
        if not is_change:
            table.put(states, columns=columns, mode="overwrite")
            self.changes += self.model.upsert(states, columns, overwrite=True)
            return
        changes = [(data.draw(KINDS) if columns is None else data.draw(st.sampled_from(["+I", "-U"])), row)
                   for row in states]  # fmt: skip
        table.put([{**row, "_change_type": kind} for kind, row in changes], columns=columns, mode="overwrite")
        self.changes += self.model.change(changes, columns, overwrite=True)

    @rule(keys=st.lists(KEYS, max_size=3), overwrite=st.booleans(), data=st.data())
    def delete(self, keys: list[str], overwrite: bool, data) -> None:
        table = self.handle(data)
        table.delete([{"k": key} for key in keys], mode="overwrite" if overwrite else "accumulate")
        self.changes += self.model.delete([{"k": key} for key in keys], overwrite=overwrite)

    @rule(keys=st.lists(KEYS, max_size=3), overwrite=st.booleans(), data=st.data())
    def delete_some_columns(self, keys: list[str], overwrite: bool, data) -> None:
        table = kolk.Table(self.db._link, self.infos[-1])
        columns = self.columns(data, self.current)
        if columns:
            table.delete([{"k": key} for key in keys], columns, "overwrite" if overwrite else "accumulate")
            self.changes += self.model.delete([{"k": key} for key in keys], columns, overwrite=overwrite)

    @rule()
    def retry_the_last_put(self) -> None:
        """It changes nothing; one that is older than what a bucket remembers of its writer is refused there."""
        if self.last is not None:
            info, rows, columns, mode, tag = self.last
            try:
                kolk.Table(self.db._link, info).put(rows, columns=columns, mode=mode, tag=tag)
            except StaleTag:
                pass
            except PartialPut as error:
                if {type(each) for each in error.failed.values()} != {StaleTag}:
                    raise

    @rule()
    def truncate(self) -> None:
        kolk.Table(self.db._link, self.infos[-1]).truncate()
        self.changes += self.model.clear()

    # --- alters

    @rule(data=st.data())
    def alter(self, data) -> None:
        before = self.infos[-1]
        operation = data.draw(st.sampled_from(self.operations()))
        table = kolk.Table(self.db._link, before)

        table.alter([operation])

        spec = altered(before.spec, [operation])
        assert table.schema == spec.schema
        self.infos = [*self.infos[-2:], table.info]
        self.changes = [(kind, translated_row(row, before.schema, spec.schema)) for kind, row in self.changes]
        self.model.alter(spec.schema, spec.options)

    def operations(self) -> list:
        self.added += 1
        name, schema = f"x{self.added}", self.current
        widest = {"int": "bigint", "smallint": "int", "tinyint": "smallint", "char(2)": "string"}
        decides = {column.agg.get("by") for column in schema.value_columns}
        loose = [column.name for column in schema.value_columns if column.name not in decides]
        found = [
            kolk.AddColumn(kolk.Column(name, "int", agg="sum", default=7, params={"overflow": "wrap"})),
            kolk.AddColumn(kolk.Column(name, "bigint", agg="count_rows", default=3), first=True),
            *[kolk.RenameColumn(column.name, name) for column in schema.value_columns],
            *[
                kolk.WidenColumn(column.name, widest[str(column.type)])
                for column in schema.value_columns
                if str(column.type) in widest
            ],
        ]
        if len(loose) > 1:
            found += [kolk.DropColumn(name) for name in loose]
        for column in schema.value_columns:
            if column.name in decides:
                by = {"by": column.name}
                found.append(kolk.AddColumn(kolk.Column(name, "string", agg="max_by", params=by)))
        return found

    # --- restarts

    @rule(how=st.sampled_from(["close", "kill", "kill and lose the KV"]))
    def restart(self, how: str) -> None:
        """A killed one goes on from a copy of the files as they are now: what kill -9 leaves, with nothing flushed."""
        if how != "close":
            after = self.folder / str(self.lives + 1)
            copy_of_one_moment(self.folder / str(self.lives), after)
            self.lives += 1
        self.db.close()
        if how == "kill and lose the KV":
            for kv in (self.folder / str(self.lives)).glob("tables/*/*/*/kv"):
                shutil.rmtree(kv)
        self.db = kolk.connect(self.folder / str(self.lives), config=CONFIG)
        assert self.db.table("t").schema == self.current

    # --- always

    @invariant()
    def rows_agree(self) -> None:
        if hasattr(self, "infos"):
            table = self.db.table("t")
            found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["k"])
            assert found == [row for _, row in sorted(self.model.rows.items())]
            keys = [{"k": key[0]} for key in self.model.rows]
            assert table.get(keys).to_pylist() == list(self.model.rows.values())

    @invariant()
    def the_changelog_shows_every_change_and_replays_to_the_table(self) -> None:
        if not hasattr(self, "infos"):
            return
        shown = [row for batch in self.db.table("t").changelog(schema="latest") for row in batch.to_pylist()]
        found = [(row["_change_type"], {name: row[name] for name in self.current.names}) for row in shown]
        for key in {row["k"] for _, row in (*found, *self.changes)}:
            assert [each for each in found if each[1]["k"] == key] == [
                each for each in self.changes if each[1]["k"] == key
            ]
        replayed = {}
        for kind, row in found:
            if kind in ("+I", "+U"):
                replayed[(row["k"],)] = row
            else:
                # Before it was altered a table may have had what it has not now.
                assert replayed.pop((row["k"],)) == row
        assert replayed == self.model.rows

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)


def test_the_default_of_a_column_is_what_the_model_begins_with():
    assert [default_of(column) for column in RETRACTABLE if column.default is not None] == [0.5]


TestAggregating = Aggregating.TestCase
TestAggregating.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
