"""The "merger" of a log table: nothing is merged, every row is kept as it came."""

from collections.abc import Iterable

import pyarrow as pa

from kolk.errors import DeletesDisabled
from kolk.merge.changes import Changes, appended
from kolk.merge.prepared import Prepared
from kolk.merge.rules import LastRow
from kolk.model.schema import Schema
from kolk.model.translation import translated_write
from kolk.model.versions import Versions
from kolk.model.write import Action, Write


class Appender:
    """Appends rows to a log table. Immutable, so thread-safe."""

    def __init__(self, schema: Schema, earlier: Iterable[Schema] = ()) -> None:
        self.schema = schema
        self.versions = Versions(schema, earlier)

    def prepare(self, write: Write) -> Prepared:
        """A log table has no keys to look at."""
        if write.action is Action.DELETE:
            raise DeletesDisabled("a log table is append only: it has no primary key to delete by")
        if write.schema_id not in (0, self.schema.id):
            write = translated_write(write, self.versions.spoken(write.schema_id), self.schema)
        return Prepared(
            write=write, schema=self.schema, rule=LastRow(), keys=(), rows=write.rows, values=None, blind=True
        )

    def merge(self, prepared: Prepared, olds: pa.BinaryArray) -> Changes:
        """Every row, as it is."""
        return appended(prepared.rows)
