"""Table options: Fluss's names, parsed once into a frozen value, with precise errors.

Everything here is decided when a table is created; the rest of the code never sees option text.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from kolk.errors import InvalidSchema
from kolk.model.schema import Schema
from kolk.model.types import Kind


class MergeEngine(Enum):
    """The rule that makes one row of an old and a new one."""

    DEFAULT = "default"
    FIRST_ROW = "first_row"
    VERSIONED = "versioned"


class MergeMode(Enum):
    """How a put treats the table's merge engine."""

    ACCUMULATE = "accumulate"
    """Merge by the table's engine."""
    OVERWRITE = "overwrite"
    """Bypass the engine: what is put stands."""


class DeleteBehavior(Enum):
    """What a delete does."""

    ALLOW = "allow"
    IGNORE = "ignore"
    DISABLE = "disable"


class ChangelogImage(Enum):
    """What the changelog shows of an update."""

    FULL = "full"
    """The row before (-U) and after (+U)."""
    WAL = "wal"
    """The row after only; full-row puts of the default engine then need not read the old row."""


MERGE_ENGINE = "table.merge-engine"
VERSION_COLUMN = "table.merge-engine.versioned.ver-column"
DELETE_BEHAVIOR = "table.delete.behavior"
CHANGELOG_IMAGE = "table.changelog.image"
BUCKET_COUNT = "bucket.num"
BUCKET_KEY = "bucket.key"
_KNOWN = (MERGE_ENGINE, VERSION_COLUMN, DELETE_BEHAVIOR, CHANGELOG_IMAGE, BUCKET_COUNT, BUCKET_KEY)
_VERSION_KINDS = (Kind.INT, Kind.BIGINT, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
_Choice = TypeVar("_Choice", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """A table's behaviour. ``parse`` makes it and checks it against the schema."""

    merge_engine: MergeEngine = MergeEngine.DEFAULT
    version_column: str | None = None
    delete_behavior: DeleteBehavior = DeleteBehavior.ALLOW
    changelog_image: ChangelogImage = ChangelogImage.FULL

    @staticmethod
    def parse(options: Mapping[str, str], schema: Schema) -> "TableOptions":
        """Read option text; an unknown key or value is an error that names the nearest one."""
        for key in options:
            _check_key(key)
        if not schema.primary_key:
            return _log_table_options(options)
        engine = _choice(MergeEngine, options, MERGE_ENGINE, MergeEngine.DEFAULT)
        allow = DeleteBehavior.ALLOW if engine is MergeEngine.DEFAULT else DeleteBehavior.IGNORE
        behavior = _choice(DeleteBehavior, options, DELETE_BEHAVIOR, allow)
        if behavior is DeleteBehavior.ALLOW and engine is not MergeEngine.DEFAULT:
            raise InvalidSchema(f"{DELETE_BEHAVIOR}=allow does not go with the {engine.value} merge engine")
        return TableOptions(
            merge_engine=engine,
            version_column=_version_column(options.get(VERSION_COLUMN), engine, schema),
            delete_behavior=behavior,
            changelog_image=_choice(ChangelogImage, options, CHANGELOG_IMAGE, ChangelogImage.FULL),
        )

    @property
    def text(self) -> dict[str, str]:
        """The options as text: what ``describe`` shows, and what ``parse`` reads back with the same schema.

        Not for a log table: it has no options to choose, and ``parse`` refuses to be given any.
        """
        shown = {
            MERGE_ENGINE: self.merge_engine.value,
            DELETE_BEHAVIOR: self.delete_behavior.value,
            CHANGELOG_IMAGE: self.changelog_image.value,
        }
        return shown | ({VERSION_COLUMN: self.version_column} if self.version_column else {})


def _check_key(key: str) -> None:
    if key not in _KNOWN:
        near = difflib.get_close_matches(str(key), _KNOWN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(_KNOWN)}"
        raise InvalidSchema(f"unknown table option {str(key)[:100]!r}; {hint}")


def _choice(kind: type[_Choice], options: Mapping[str, str], key: str, default: _Choice) -> _Choice:
    text = options.get(key)
    if text is None:
        return default
    values = [member.value for member in kind]
    if str(text).lower() not in values:
        raise InvalidSchema(f"{key} is one of {', '.join(values)}, not {str(text)[:100]!r}")
    return kind(str(text).lower())


def _log_table_options(options: Mapping[str, str]) -> TableOptions:
    for key in (MERGE_ENGINE, VERSION_COLUMN, DELETE_BEHAVIOR, CHANGELOG_IMAGE):
        if key in options:
            raise InvalidSchema(f"{key} is only for tables with a primary key; this one has none")
    return TableOptions(delete_behavior=DeleteBehavior.DISABLE)


def _version_column(name: str | None, engine: MergeEngine, schema: Schema) -> str | None:
    if engine is not MergeEngine.VERSIONED:
        if name is not None:
            raise InvalidSchema(f"{VERSION_COLUMN} goes with {MERGE_ENGINE}=versioned only")
        return None
    if name is None:
        raise InvalidSchema(f"{VERSION_COLUMN} must be set for versioned merge engine")
    if name not in schema.names:
        raise InvalidSchema(f"the version column {name!r} is not a column; they are {', '.join(schema.names)}")
    if name in schema.primary_key:
        raise InvalidSchema(f"the version column {name!r} is part of the primary key, so it can never differ")
    if schema.column(name).type.kind not in _VERSION_KINDS:
        raise InvalidSchema(
            f"the version column {name!r} is a {schema.column(name).type};"
            f" it must be one of {', '.join(kind.value for kind in _VERSION_KINDS)}"
        )
    return name
