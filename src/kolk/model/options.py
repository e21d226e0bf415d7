"""Table options: Fluss's names, parsed once into a frozen value, with precise errors.

What they say is decided when a table is created, but for a few that may change while it lives; the rest of the code
never sees option text.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from kolk.errors import InvalidArgument, InvalidSchema
from kolk.model.aggregate import Aggregate
from kolk.model.auto_partition import (
    AUTO_PARTITION_GRACE,
    AUTO_PARTITION_OPTIONS,
    AUTO_PARTITION_PRECREATE,
    AUTO_PARTITION_RETENTION,
    AutoPartition,
)
from kolk.model.durations import duration_text, milliseconds
from kolk.model.schema import Schema
from kolk.model.types import Kind


class MergeEngine(Enum):
    """The rule that makes one row of an old and a new one."""

    DEFAULT = "default"
    FIRST_ROW = "first_row"
    VERSIONED = "versioned"
    AGGREGATION = "aggregation"


class MergeMode(Enum):
    """How a put treats the table's merge engine."""

    ACCUMULATE = "accumulate"
    """Merge by the table's engine."""
    OVERWRITE = "overwrite"
    """Bypass the engine: what is put stands."""
    MERGE_STATE = "merge_state"
    """Of an aggregation table: what is put is states, aggregated before they were sent, which are merged."""

    @staticmethod
    def parse(text: str) -> "MergeMode":
        """People, and clients, write the word."""
        modes = {mode.value: mode for mode in MergeMode}
        if not isinstance(text, str) or text not in modes:
            raise InvalidArgument(f"mode is one of {', '.join(modes)}, not {text!r}")
        return modes[text]


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
FALLBACK = "fields.default.agg"
VERSION_COLUMN = "table.merge-engine.versioned.ver-column"
DELETE_BEHAVIOR = "table.delete.behavior"
CHANGELOG_IMAGE = "table.changelog.image"
BUCKET_COUNT = "bucket.num"
BUCKET_KEY = "bucket.key"
KV_TTL = "table.kv.ttl"
KV_TTL_COLUMN = "table.kv.ttl.column"
LOG_TTL = "table.log.ttl"
LOG_BYTES_MAX = "table.log.max-bytes"
DYNAMIC_PARTITIONS = "table.dynamic-partition.enabled"
_FOR_KEYS = (MERGE_ENGINE, VERSION_COLUMN, FALLBACK, DELETE_BEHAVIOR, CHANGELOG_IMAGE, KV_TTL, KV_TTL_COLUMN)
_FOR_LOGS = (LOG_TTL, LOG_BYTES_MAX)
_FOR_PARTITIONS = (DYNAMIC_PARTITIONS, *AUTO_PARTITION_OPTIONS)
CHANGEABLE = (
    *_FOR_LOGS,
    KV_TTL,
    DYNAMIC_PARTITIONS,
    AUTO_PARTITION_PRECREATE,
    AUTO_PARTITION_RETENTION,
    AUTO_PARTITION_GRACE,
)
"""What may be set on a table that exists: nothing that is stored, and no merger, depends on it."""
_KNOWN = (*_FOR_KEYS, *_FOR_LOGS, *_FOR_PARTITIONS, BUCKET_COUNT, BUCKET_KEY)
_OFF = "-1"
"""Fluss's word for a log that is kept, and ours for rows that are."""
_VERSION_KINDS = (Kind.INT, Kind.BIGINT, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
_TIME_KINDS = (Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ, Kind.DATE)
_Choice = TypeVar("_Choice", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """A table's behaviour. ``parse`` makes it and checks it against the schema."""

    merge_engine: MergeEngine = MergeEngine.DEFAULT
    version_column: str | None = None
    fallback: Aggregate | None = None
    """The function of columns that name none, of an aggregation table."""
    delete_behavior: DeleteBehavior = DeleteBehavior.ALLOW
    changelog_image: ChangelogImage = ChangelogImage.FULL
    kv_ttl_ms: int | None = None
    """How long a row of a table with a key lives, counted from its time; None is for ever."""
    kv_ttl_column: str | None = None
    """The column that holds a row's time; it may be named while no row expires, so that rows can later."""
    log_ttl_ms: int | None = None
    """How long a bucket keeps its log at least; None is for ever. With a key it also waits for snapshots."""
    log_bytes_max: int | None = None
    """How much log a bucket keeps; None is all of it."""
    dynamic_partitions: bool = True
    """Whether a put makes the partitions of its rows."""
    auto_partition: AutoPartition | None = None
    """How partitions follow time; None if they do not."""

    @staticmethod
    def parse(options: Mapping[str, str], schema: Schema, partition_by: Sequence[str] = ()) -> "TableOptions":
        """Read option text; an unknown key or value is an error that names the nearest one."""
        for key in options:
            _check_key(key)
        found = _log_table_options(options) if not schema.primary_key else _key_table_options(options, schema)
        return replace(
            found,
            dynamic_partitions=_dynamic_partitions(options.get(DYNAMIC_PARTITIONS), partition_by),
            auto_partition=AutoPartition.parse(options, schema, partition_by),
        )

    def changed(self, options: Mapping[str, str], schema: Schema, partition_by: Sequence[str] = ()) -> "TableOptions":
        """The options of a living table with some of them set anew."""
        if not options:
            raise InvalidSchema(f"set at least one option; those that can change are {', '.join(CHANGEABLE)}")
        for key in options:
            _check_key(key)
            if key not in CHANGEABLE:
                raise InvalidSchema(
                    f"{key} is decided when a table is made and cannot be set later; {', '.join(CHANGEABLE)} can"
                )
        before = self.text if schema.primary_key else self.log_text
        return TableOptions.parse({**before, **options}, schema, partition_by)

    @property
    def text(self) -> dict[str, str]:
        """The options of a table with a key: what ``describe`` shows, and what ``parse`` reads back with the schema."""
        shown = {
            MERGE_ENGINE: self.merge_engine.value,
            DELETE_BEHAVIOR: self.delete_behavior.value,
            CHANGELOG_IMAGE: self.changelog_image.value,
        }
        shown |= {VERSION_COLUMN: self.version_column} if self.version_column else {}
        shown |= {FALLBACK: str(self.fallback)} if self.fallback else {}
        shown |= {} if self.kv_ttl_ms is None else {KV_TTL: duration_text(self.kv_ttl_ms)}
        shown |= {KV_TTL_COLUMN: self.kv_ttl_column} if self.kv_ttl_column else {}
        return shown | self.log_text

    @property
    def log_text(self) -> dict[str, str]:
        """The same for a log table, and for the log of any; what is off is left out."""
        shown = {} if self.log_ttl_ms is None else {LOG_TTL: duration_text(self.log_ttl_ms)}
        shown |= {} if self.log_bytes_max is None else {LOG_BYTES_MAX: str(self.log_bytes_max)}
        return shown | self._partition_text

    @property
    def _partition_text(self) -> dict[str, str]:
        """What there is to say of partitions; nothing, if they are as they usually are."""
        shown = {} if self.dynamic_partitions else {DYNAMIC_PARTITIONS: "false"}
        return shown | ({} if self.auto_partition is None else self.auto_partition.text)


def _check_key(key: str) -> None:
    if key not in _KNOWN:
        near = difflib.get_close_matches(str(key), _KNOWN, n=1)
        groups = [known for known in _KNOWN if known not in AUTO_PARTITION_OPTIONS]
        hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(groups)}, table.auto-partition.*"
        raise InvalidSchema(f"unknown table option {str(key)[:100]!r}; {hint}")


def _key_table_options(options: Mapping[str, str], schema: Schema) -> TableOptions:
    engine = _choice(MergeEngine, options, MERGE_ENGINE, MergeEngine.DEFAULT)
    allow = DeleteBehavior.ALLOW if engine is MergeEngine.DEFAULT else DeleteBehavior.IGNORE
    behavior = _choice(DeleteBehavior, options, DELETE_BEHAVIOR, allow)
    if behavior is DeleteBehavior.ALLOW and engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED):
        raise InvalidSchema(f"{DELETE_BEHAVIOR}=allow does not go with the {engine.value} merge engine")
    image = _choice(ChangelogImage, options, CHANGELOG_IMAGE, ChangelogImage.FULL)
    if image is ChangelogImage.WAL and engine is MergeEngine.AGGREGATION:
        raise InvalidSchema(
            f"{CHANGELOG_IMAGE}=wal does not go with the aggregation merge engine: what an update replaced is needed to"
            " take it back; leave the option out"
        )
    ttl_ms = _ttl(KV_TTL, options.get(KV_TTL, _OFF))
    return TableOptions(
        merge_engine=engine,
        version_column=_version_column(options.get(VERSION_COLUMN), engine, schema),
        fallback=_fallback(options.get(FALLBACK), engine),
        delete_behavior=behavior,
        changelog_image=image,
        kv_ttl_ms=ttl_ms,
        kv_ttl_column=_ttl_column(options.get(KV_TTL_COLUMN), ttl_ms, schema),
        log_ttl_ms=_ttl(LOG_TTL, options.get(LOG_TTL, _OFF)),
        log_bytes_max=_log_bytes_max(options.get(LOG_BYTES_MAX, _OFF)),
    )


def _dynamic_partitions(text: str | None, partition_by: Sequence[str]) -> bool:
    if text is None:
        return True
    if not partition_by:
        raise InvalidSchema(f"{DYNAMIC_PARTITIONS} is only for tables with partition columns; this one has none")
    if text.lower() not in ("true", "false"):
        raise InvalidSchema(f"{DYNAMIC_PARTITIONS} is one of true, false, not {text[:100]!r}")
    return text.lower() == "true"


def _choice(kind: type[_Choice], options: Mapping[str, str], key: str, default: _Choice) -> _Choice:
    text = options.get(key)
    if text is None:
        return default
    values = [member.value for member in kind]
    if str(text).lower() not in values:
        raise InvalidSchema(f"{key} is one of {', '.join(values)}, not {str(text)[:100]!r}")
    return kind(str(text).lower())


def _log_table_options(options: Mapping[str, str]) -> TableOptions:
    for key in _FOR_KEYS:
        if key in options:
            raise InvalidSchema(f"{key} is only for tables with a primary key; this one has none")
    return TableOptions(
        delete_behavior=DeleteBehavior.DISABLE,
        log_ttl_ms=_ttl(LOG_TTL, options.get(LOG_TTL, _OFF)),
        log_bytes_max=_log_bytes_max(options.get(LOG_BYTES_MAX, _OFF)),
    )


def _ttl(key: str, text: str) -> int | None:
    if text == _OFF:
        return None
    found = milliseconds(text)
    if not found:
        raise InvalidSchema(f"{key} is a duration such as 12h or 7d, or {_OFF} for ever, not {text[:100]!r}")
    return found


def _ttl_column(name: str | None, ttl_ms: int | None, schema: Schema) -> str | None:
    if name is None:
        if ttl_ms is not None:
            raise InvalidSchema(
                f"{KV_TTL} needs {KV_TTL_COLUMN}, the column that holds a row's time, which is named when a table is"
                " made"
            )
        return None
    if name not in schema.names:
        raise InvalidSchema(f"{KV_TTL_COLUMN}: {name[:100]!r} is not a column; they are {', '.join(schema.names)}")
    if schema.column(name).type.kind not in _TIME_KINDS:
        raise InvalidSchema(
            f"{KV_TTL_COLUMN}: {name!r} is a {schema.column(name).type.shown};"
            f" it must be one of {', '.join(kind.value for kind in _TIME_KINDS)}"
        )
    return name


def _log_bytes_max(text: str) -> int | None:
    if text == _OFF:
        return None
    if len(text) > 18 or not text.isascii() or not text.isdigit() or not int(text):
        raise InvalidSchema(f"{LOG_BYTES_MAX} is a number of bytes, or {_OFF} for no limit, not {text[:100]!r}")
    return int(text)


def _fallback(text: str | None, engine: MergeEngine) -> Aggregate | None:
    if text is None:
        return None
    if engine is not MergeEngine.AGGREGATION:
        raise InvalidSchema(f"{FALLBACK} goes with {MERGE_ENGINE}=aggregation only")
    return Aggregate.parse(text)


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
