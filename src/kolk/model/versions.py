"""Every version that a table's schema has had: what stored rows, log frames and old handles are read by.

A version is frozen and never goes while its table is there, because rows of it may be stored for ever. Of how one
becomes the next this module knows nothing.
"""

from collections.abc import Iterable, Iterator

from kolk.errors import SchemaChanged
from kolk.model.schema import Schema


class Versions:
    """The versions of one table's schema. Immutable, so thread-safe."""

    def __init__(self, current: Schema, earlier: Iterable[Schema] = ()) -> None:
        self.current = current
        self._schemas = {schema.id: schema for schema in (*earlier, current)}

    @property
    def are_many(self) -> bool:
        """Whether there was ever another one than the current."""
        return len(self._schemas) > 1

    def find(self, schema_id: int) -> Schema | None:
        """The version of this number."""
        return self._schemas.get(schema_id)

    def spoken(self, schema_id: int) -> Schema:
        """The version that a caller speaks, by its number; 0 is the current one."""
        found = self.current if schema_id == 0 else self._schemas.get(schema_id)
        if found is None:
            raise SchemaChanged(
                f"version {schema_id} of the schema is not known here, the newest is {self.current.id}: call"
                " table.refresh(), or get the table anew"
            )
        return found

    def __iter__(self) -> Iterator[Schema]:
        return iter(self._schemas.values())
