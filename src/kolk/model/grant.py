"""Who may do what with which tables: grants, and the principals that hold them.

The operations are Fluss's, so that what users know of its ACLs carries over. A grant names tables by a pattern and
the operations allowed on them; what no grant allows is denied, and no grant can deny. A pattern is a table name of
which each part may end in ``*``: it matches by prefix and nothing cleverer, so that a glance tells what it opens.

Everything here is a value. Where principals come from is ``kolk.server.tokens``'s business.
"""

from dataclasses import dataclass
from enum import Enum

from kolk.errors import InvalidArgument, InvalidName
from kolk.model.names import TableName, check_name

_ALL_WORD = "all"
_ALL_TABLES = "*"
_DEFAULT_DATABASE = TableName.parse("any").database


class Operation(Enum):
    """What can be done with a table."""

    READ = "read"
    """Get, scan, follow the changelog."""
    WRITE = "write"
    """Put, delete and truncate rows."""
    CREATE = "create"
    """Make a table of a matching name."""
    DROP = "drop"
    ALTER = "alter"
    DESCRIBE = "describe"
    """See that the table exists, and its schema."""


ALL_OPERATIONS = frozenset(Operation)

_IMPLY_DESCRIBE = frozenset({Operation.READ, Operation.WRITE, Operation.ALTER})
"""None of these is of use to one who may not know the schema."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Operations on all tables that match a pattern. ``default.t`` is kept as ``t``, ``*.*`` as ``*``."""

    tables: str
    operations: frozenset[Operation]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", _pattern(self.tables))
        operations = frozenset(self.operations)
        if not operations or not operations <= ALL_OPERATIONS:
            raise InvalidArgument(f"a grant allows some of {_words()}, not {_shown(self.operations)}")
        object.__setattr__(self, "operations", operations)

    @staticmethod
    def parse(text: str) -> "Grant":
        """Read ``tables=operation,...``, such as ``web.*=read,write`` or ``*=all``."""
        tables, equals, words = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            raise InvalidArgument(f"{_shown(text)} is not a grant: write tables=operations, such as web.*=read,write")
        operations = frozenset(operation for word in words.split(",") for operation in _operations(word.strip()))
        return Grant(tables.strip(), operations)

    def covers(self, table: TableName) -> bool:
        """Whether the pattern matches this table."""
        if self.tables == _ALL_TABLES:
            return True
        database, dot, name = self.tables.rpartition(".")
        return _fits(database if dot else _DEFAULT_DATABASE, table.database) and _fits(name, table.table)

    def allows(self, operation: Operation) -> bool:
        """Whether the operation is in the grant, by name or because another one implies it."""
        if operation in self.operations:
            return True
        return operation is Operation.DESCRIBE and not self.operations.isdisjoint(_IMPLY_DESCRIBE)

    def __str__(self) -> str:
        """What ``parse`` reads back; the operations in the order of the enum."""
        if self.operations == ALL_OPERATIONS:
            return f"{self.tables}={_ALL_WORD}"
        return f"{self.tables}={','.join(each.value for each in Operation if each in self.operations)}"


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who calls, as far as it matters: a name for logs and limits, and what it may do."""

    name: str
    grants: tuple[Grant, ...]
    token_id: str | None = None
    """The token that it came with; by it the server notices that the token was revoked meanwhile."""

    def may(self, operation: Operation, table: TableName) -> bool:
        """Whether some grant allows this operation on this table."""
        return any(grant.allows(operation) and grant.covers(table) for grant in self.grants)

    def may_anything(self, table: TableName) -> bool:
        """Whether some grant allows anything on this table; if not, it is not even to be named."""
        return any(grant.covers(table) for grant in self.grants)


def _pattern(text: str) -> str:
    """The one way in which this pattern is written."""
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) not in (1, 2):
        raise InvalidArgument(
            f"{_shown(text)} does not name tables: write *, database.*, database.table or table,"
            " each part with a * at its end if you like"
        )
    for part in parts:
        _check_part(part, text)
    if all(part == "*" for part in parts):
        return _ALL_TABLES
    # A lone * means every database, so default.* needs its database; other tables of default go by their name.
    if parts[0] == _DEFAULT_DATABASE and len(parts) == 2 and parts[1] != "*":
        return parts[1]
    return ".".join(parts)


def _check_part(part: str, text: str) -> None:
    prefix = part.removesuffix("*")
    if "*" in prefix:
        raise InvalidArgument(f"{_shown(text)} has a * in the middle of a part; it may stand only at the end of one")
    if part == "*":
        return
    try:
        check_name(prefix, "table or database")
    except InvalidName as error:
        raise InvalidArgument(str(error)) from None


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _operations(word: str) -> frozenset[Operation]:
    """People write the word, in any case."""
    if word.lower() == _ALL_WORD:
        return ALL_OPERATIONS
    for operation in Operation:
        if operation.value == word.lower():
            return frozenset({operation})
    raise InvalidArgument(f"{_shown(word)} is not an operation: use {_words()} or {_ALL_WORD}")


def _words() -> str:
    return ", ".join(operation.value for operation in Operation)


def _shown(given: object) -> str:
    """Short enough for a message, whatever came in."""
    text = given if isinstance(given, str) else str(given)
    return repr(text) if len(text) <= 60 else repr(text[:57]) + "..."


EVERYONE = Principal("anonymous", (Grant(_ALL_TABLES, ALL_OPERATIONS),))
"""Whoever calls a server without auth."""
