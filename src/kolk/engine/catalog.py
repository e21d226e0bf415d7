"""The catalog: which tables there are. Names are unique, ids are never used again.

Meta records: ``next-table`` (the next id, as text), ``table/<id>`` (the description), ``name/<database.table>``
(the id). A table is created or dropped by one atomic meta write, so there is no half of one; the files of a
dropped table are removed afterwards, and what a crash leaves of them is found by its id at the next start.
"""

import threading
from collections.abc import Sequence

from kolk.codec.table import decode_table, encode_table
from kolk.errors import TableExists, TableNotFound, TooManyTables
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.table import TableInfo, TableSpec
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
        """Add a table."""
        with self._lock:
            if spec.name in self._by_name:
                raise TableExists(
                    f"there is a table {str(spec.name)!r} already; drop it first, or open it with db.table"
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

    def drop(self, info: TableInfo) -> None:
        """Remove a table."""
        with self._lock:
            self.by_id(info.id)
            changes = [self._deletion(_key(info.id)), self._deletion(_name_key(info.name))]
            self._write(changes)

    def _deletion(self, key: str) -> MetaChange:
        record = self._meta.get(key)
        return MetaChange(key, None, record.version if record else ABSENT)

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


def _key(table: TableId) -> str:
    return f"table/{table:012}"


def _id_of(key: str) -> TableId:
    return TableId(int(key.removeprefix("table/")))


def _name_key(name: TableName) -> str:
    return f"name/{name.database}.{name.table}"
