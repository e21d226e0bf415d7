"""What somebody wants to read of a table, from the options: which rows, which columns, from where.

Everything that can be said wrongly is found here, by name, before anything is read. Nothing here asks the server.
"""

from dataclasses import dataclass

from pyspark.sql import types as st

from kolk.client.last_rows import ROWS_MAX
from kolk.client.where import predicate_of
from kolk.errors import InvalidArgument
from kolk.model.predicate import Predicate
from kolk.model.table import TableInfo, check_partitions_only
from kolk.spark.forms import Form, changes_schema
from kolk.spark.options import Options, check_read

LIVE, SNAPSHOT, CHANGELOG, LEASE = "live", "snapshot", "changelog", "lease"
_KINDS = (LIVE, SNAPSHOT, CHANGELOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be read. ``schema`` is what Spark is told; a frame may have fewer of these columns."""

    kind: str
    lease: str
    form: Form
    schema: st.StructType
    where: Predicate | None
    limit: int | None

    @staticmethod
    def of(options: Options, info: TableInfo) -> "Asked":
        """What the options say about this table."""
        check_read(options, is_stream=False)
        kind, lease = _source(options.text("source") or LIVE)
        if kind in (SNAPSHOT, LEASE) and info.is_log:
            raise InvalidArgument(f"{info.name} is a log table and has no snapshots; leave the option 'source' out")
        for name in ("start", "stop", "changes"):
            if kind != CHANGELOG and options.text(name) is not None:
                raise InvalidArgument(
                    f"a batch read has the option {name!r} with .option('source', 'changelog'), a stream without"
                )
        limit = options.number("limit")
        if kind == CHANGELOG and limit is not None:
            raise InvalidArgument("a changelog has no limit: give 'start' and 'stop', or use df.limit(...)")
        where = predicate_of(options.text("where"), info.schema)
        if info.is_log and limit is not None:
            _check_last(info, where, limit)
        return Asked(
            kind=kind,
            lease=lease,
            form=Form.of(options),
            schema=schema_of(options, info),
            where=where,
            limit=limit,
        )

    def check(self, schema: st.StructType) -> None:
        """Refuse a frame's schema that is not some of the columns, by name and type."""
        check_columns(schema, self.schema)


def check_columns(schema: st.StructType, known: st.StructType) -> None:
    """Refuse a schema that somebody has given, if it is not some of the columns that there are, by name and type."""
    for field in schema.fields:
        if field.name not in known.names:
            raise InvalidArgument(
                f"there is no column {field.name!r} to read; the columns are {', '.join(known.names)}"
            )
        own = known[field.name]
        if not _holds(field.dataType, own.dataType) or (own.nullable and not field.nullable):
            raise InvalidArgument(
                f"the column {field.name!r} is {_shown(own)}, not {_shown(field)}; read it as it is and cast it"
            )
    if len(set(schema.names)) != len(schema.names):
        raise InvalidArgument("a column is named twice in the schema; name each once")


def schema_of(options: Options, info: TableInfo) -> st.StructType:
    """The columns that Spark is told of; when it asks, it does not say whether a batch is read or a stream."""
    return changes_schema(info.schema, Form.of(options), options.names("columns"))


def _source(text: str) -> tuple[str, str]:
    kind, _, lease = text.partition(":")
    if kind.lower() == LEASE and lease:
        return LEASE, lease
    if text.lower() in _KINDS:
        return text.lower(), ""
    raise InvalidArgument(f"the option 'source' is one of {', '.join(_KINDS)} or lease:ID, not {text[:60]!r}")


def _check_last(info: TableInfo, where: Predicate | None, limit: int) -> None:
    """Refuse last rows of a log table that nobody can find without reading all of it."""
    if limit > ROWS_MAX:
        raise InvalidArgument(
            f"{info.name} is a log table, of which 'limit' shows the last rows, up to {ROWS_MAX:,}; leave it out to"
            " read all of them"
        )
    check_partitions_only(info, where)


def _holds(wanted: st.DataType, has: st.DataType) -> bool:
    """Whether one type is the other, but that it may allow nulls where the other has none."""
    if isinstance(wanted, st.StructType) and isinstance(has, st.StructType):
        pairs = zip(wanted.fields, has.fields, strict=False)
        return wanted.names == has.names and all(
            _holds(one.dataType, other.dataType) and (one.nullable or not other.nullable) for one, other in pairs
        )
    if isinstance(wanted, st.ArrayType) and isinstance(has, st.ArrayType):
        return _holds(wanted.elementType, has.elementType) and (wanted.containsNull or not has.containsNull)
    if isinstance(wanted, st.MapType) and isinstance(has, st.MapType):
        is_held = _holds(wanted.keyType, has.keyType) and _holds(wanted.valueType, has.valueType)
        return is_held and (wanted.valueContainsNull or not has.valueContainsNull)
    return wanted == has


def _shown(field: st.StructField) -> str:
    return field.dataType.simpleString() + ("" if field.nullable else " not null")
