"""Names that people give, and the one rule they obey.

Names come from outside, so they are checked once, here, and never become part of a path: on disk everything
has a number.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from kolk.errors import InvalidName
from kolk.model.shown import shown

NAME_LENGTH_MAX = 200
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}}")
_DEFAULT_DATABASE = "default"


def check_name(name: str, what: str) -> str:
    """Return ``name``, as plain text, if it obeys the rule, else raise an error that tells the rule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("__"):
        given = shown(name) if not isinstance(name, str) else repr(name) if len(name) <= 60 else f"{name[:57]!r}..."
        raise InvalidName(
            f"{given} is not a {what} name: use 1 to {NAME_LENGTH_MAX} of A-Z a-z 0-9 _ -,"
            " not starting with - or with two underscores"
        )
    return plain_text(name)


def plain_text(text: str) -> str:
    """A text as Python's own: one of numpy's or of an enum is text too, but can be neither stored nor sent."""
    return str.__str__(text)


def no_column(name: object, names: Iterable[str]) -> str:
    """That there is no column of this name, and which there are; the one first that was perhaps meant."""
    known = {each.lower(): each for each in names}
    near = difflib.get_close_matches(str(name).lower()[:NAME_LENGTH_MAX], known, n=1)
    hint = f"did you mean {known[near[0]]!r}? The" if near else "the"
    return f"there is no column {name!r}; {hint} columns are {', '.join(known.values())}"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """``database.table``; a table named without a database lives in ``default``."""

    database: str
    table: str

    @staticmethod
    def parse(text: str) -> "TableName":
        """Read ``table`` or ``database.table``."""
        parts = text.split(".") if isinstance(text, str) else []
        if len(parts) not in (1, 2):
            raise InvalidName(f"{str(text)[:60]!r} is not a table name: write table or database.table")
        database = parts[0] if len(parts) == 2 else _DEFAULT_DATABASE
        return TableName(check_name(database, "database"), check_name(parts[-1], "table"))

    def __str__(self) -> str:
        return self.table if self.database == _DEFAULT_DATABASE else f"{self.database}.{self.table}"
