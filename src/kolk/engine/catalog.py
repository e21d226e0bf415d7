"""The catalog: which tables there are, and every version that their schemas have had. Names are unique, ids are never
used again.

Meta records: ``next-table`` (the next id, as text), ``table/<id>`` (the description), ``name/<database.table>``
(the id), ``schema/<table id>/<schema id>`` (the description before it was altered). A table is created, altered or
dropped by one atomic meta write, so there is no half of one; the files of a dropped table are removed afterwards, and
what a crash leaves of them is found by its id at the next start.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kolk.codec.table import decode_table, encode_table
from kolk.errors import SchemaChanged, TableExists, TableNotFound, TooManyTables
from kolk.merge.aggregates.binding import aggregator_of
from kolk.model.evolution import Operation, altered
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec
from kolk.model.versions import Versions
from kolk.storage.meta import ABSENT, Meta, MetaChange

TABLES_MAX = 10_000
_NEXT = "next-table"
_FIRST_ID = 1


class Catalog:
    """The tables of a database. Thread-safe: one lock; lookups take none."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._lock = threading.Lock()
        self._by_id: dict[TableId, TableInfo] = {}
        self._by_name: dict[TableName, TableInfo] = {}
        # Replaced table by table; two that race read the same records twice.
        self._versions: dict[TableId, Versions] = {}
        self._load()

    def get(self, name: TableName) -> TableInfo:
        """The table of this name."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(map(str, sorted(self._by_name)[:20])) or "none yet"
            raise TableNotFound(f"there is no table {str(name)!r}; the tables are: {known}") from None

    def by_id(self, table: TableId) -> TableInfo:
        """The table with this id; one that was dropped, even if the name exists again, is not found."""
        try:
            return self._by_id[table]
        except KeyError:
            raise TableNotFound("this table was dropped; get the table of that name anew, if there is one") from None

    def list(self) -> list[TableInfo]:
        """All tables, by name."""
        return [info for _, info in sorted(self._by_name.items())]

    @property
    def next_id(self) -> int:
        """Every table that ever was has a smaller id."""
        counter = self._meta.get(_NEXT)
        return int(counter.value) if counter else _FIRST_ID

    def create(self, spec: TableSpec, now_ms: int) -> TableInfo:
        """Add a table. UnknownAggregate if what its columns need is not here, before anything is written."""
        _check_functions(spec.schema.columns, spec.schema)
        with self._lock:
            if spec.name in self._by_name:
                raise TableExists(
                    f"there is a table {str(spec.name)!r} already; open it with db.table({str(spec.name)!r}), or say"
                    " IF NOT EXISTS (if_not_exists=True, --if-not-exists)"
                )
            if len(self._by_id) >= TABLES_MAX:
                raise TooManyTables(f"a database has at most {TABLES_MAX:,} tables; drop some first")
            counter = self._meta.get(_NEXT)
            number = int(counter.value) if counter else _FIRST_ID
            info = TableInfo(id=TableId(number), spec=spec, created_ms=now_ms)
            record = encode_table(info)
            assert decode_table(info.id, record) == info, "what cannot be read back must not be written"
            self._write(
                [
                    MetaChange(_NEXT, str(number + 1).encode(), counter.version if counter else ABSENT),
                    MetaChange(_key(info.id), record, ABSENT),
                    MetaChange(_name_key(info.name), str(number).encode(), ABSENT),
                ]
            )
            return info

    def versions(self, info: TableInfo) -> Versions:
        """Every version of a table's schema up to the one that this knows, or a later one."""
        known = self._versions.get(info.id)
        if known is None or known.current.id < info.schema.id:
            earlier = [before.schema for before in self._earlier(info.id)] if info.schema.id > 1 else []
            known = self._versions[info.id] = Versions(info.schema, earlier)
        return known

    def alter(self, table: TableId, based_on: int, operations: Sequence[Operation]) -> TableInfo:
        """Make the next version of a table's schema of the one that the caller knows.

        A caller who did not hear the answer may ask again: what is already so is not done twice.
        """
        with self._lock:
            info = self.by_id(table)
            if info.schema.id == based_on:
                return self._replaced(info, altered(info.spec, operations), keeping=True)
            known = [*self._earlier(table), info]
            base = next((before for before in known if before.schema.id == based_on), None)
            later = next((after for after in known if after.schema.id == based_on + 1), None)
            if base is not None and later is not None and altered(base.spec, operations).schema == later.schema:
                return info
            raise SchemaChanged(
                f"{info.name} was altered meanwhile: it is at version {info.schema.id} of its schema, and this alter"
                f" was made for version {based_on}; call table.refresh(), look at it, and alter again"
            )

    def set_options(self, table: TableId, options: Mapping[str, str]) -> TableInfo:
        """Set options of a living table; the schema stays as it is."""
        with self._lock:
            info = self.by_id(table)
            changed = info.spec.options.changed(options, info.schema, info.spec.partition_by)
            return self._replaced(info, replace(info.spec, options=changed), keeping=False)

    def drop(self, info: TableInfo) -> None:
        """Remove a table, with the earlier versions of its schema."""
        with self._lock:
            self.by_id(info.id)
            keys = [_key(info.id), _name_key(info.name)]
            keys += [record.key for record in self._meta.list(_schema_prefix(info.id))]
            self._write([self._meta.replacement(key, None) for key in keys])
            self._versions.pop(info.id, None)

    def _replaced(self, info: TableInfo, spec: TableSpec, *, keeping: bool) -> TableInfo:
        """Write a table's record anew, and keep the one before as an earlier version if the schema is another."""
        known = info.schema.by_id
        _check_functions([column for column in spec.schema.columns if column.id not in known], spec.schema)
        after = replace(info, spec=spec)
        key, record = _key(info.id), encode_table(after)
        assert decode_table(info.id, record) == after, "what cannot be read back must not be written"
        before = self._meta.get(key)
        assert before is not None, "the catalog shows what is written"
        changes = [MetaChange(key, record, before.version)]
        if keeping:
            changes.append(MetaChange(f"{_schema_prefix(info.id)}{info.schema.id:05}", before.value, ABSENT))
        self._write(changes)
        return after

    def _earlier(self, table: TableId) -> Sequence[TableInfo]:
        """The table as it was before each time that it was altered."""
        return [decode_table(table, record.value) for record in self._meta.list(_schema_prefix(table))]

    def _write(self, changes: Sequence[MetaChange]) -> None:
        """Change the records, then show what they are now: also if Ctrl-C came after they were changed."""
        try:
            self._meta.write(changes)
        finally:
            self._load()

    def _load(self) -> None:
        tables = [decode_table(_id_of(record.key), record.value) for record in self._meta.list("table/")]
        # Replaced whole, so that readers see one state or the next.
        self._by_id = {info.id: info for info in tables}
        self._by_name = {info.name: info for info in tables}


def _check_functions(columns: Iterable[Column], schema: Schema) -> None:
    """Whether columns that are new can be computed here. What was there may have been made where it could be."""
    for column in columns:
        if column.agg is not None:
            aggregator_of(column, schema)


def _key(table: TableId) -> str:
    return f"table/{table:012}"


def _id_of(key: str) -> TableId:
    return TableId(int(key.removeprefix("table/")))


def _schema_prefix(table: TableId) -> str:
    return f"schema/{table:012}/"


def _name_key(name: TableName) -> str:
    return f"name/{name.database}.{name.table}"
