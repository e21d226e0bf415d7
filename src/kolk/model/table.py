"""A table as everyone sees it: its identity, schema, buckets and options, frozen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kolk.errors import InvalidArgument, InvalidSchema
from kolk.model.aggregation import completed, declared
from kolk.model.ids import NO_PARTITION, BucketId, TableId
from kolk.model.names import TableName
from kolk.model.options import BUCKET_COUNT, BUCKET_KEY, MERGE_ENGINE, TableOptions
from kolk.model.partition import Partition, check_partition_by
from kolk.model.predicate import Predicate
from kolk.model.schema import Column, Schema

BUCKETS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """What a table is to be, checked: everything but the id that the catalog will give it."""

    name: TableName
    schema: Schema
    buckets: int
    bucket_key: tuple[str, ...]
    options: TableOptions
    partition_by: tuple[str, ...] = ()

    @staticmethod
    def make(
        name: str,
        schema: Schema,
        *,
        buckets: int | None = None,
        bucket_key: Sequence[str] | None = None,
        partition_by: Sequence[str] | None = None,
        merge_engine: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> "TableSpec":
        """Check arguments and options together; a thing said twice must be said alike."""
        if options is not None and not isinstance(options, Mapping):
            raise InvalidSchema("options is a dict of option names and values")
        text = {str(key): str(value) for key, value in (options or {}).items()}
        if merge_engine is not None:
            _say(text, MERGE_ENGINE, str(merge_engine))
        if buckets is not None:
            _say(text, BUCKET_COUNT, str(buckets))
        if bucket_key is not None:
            if not isinstance(bucket_key, Iterable) or not all(isinstance(name, str) for name in bucket_key):
                raise InvalidSchema(f"bucket_key is a list of column names, not {bucket_key!r}")
            _say(text, BUCKET_KEY, ",".join([bucket_key] if isinstance(bucket_key, str) else bucket_key))
        schema, text = declared(schema, text)
        parts = check_partition_by(partition_by, schema)
        count, key = _bucket_count(text.get(BUCKET_COUNT, "1")), _bucket_key(text.get(BUCKET_KEY), schema, parts)
        if count > 1:
            _check_hashable(key, schema)
        parsed = TableOptions.parse(text, schema, parts)
        return TableSpec(
            name=TableName.parse(name),
            schema=completed(schema, parsed),
            buckets=count,
            bucket_key=key,
            options=parsed,
            partition_by=parts,
        )

    def in_zone(self, name: str) -> "TableSpec":
        """The same, with partitions that follow time doing so in this zone, unless it was said in which."""
        auto = self.options.auto_partition
        return self if auto is None else replace(self, options=replace(self.options, auto_partition=auto.in_zone(name)))

    @property
    def option_text(self) -> dict[str, str]:
        """The options as text, which ``TableOptions.parse`` reads back with the schema."""
        return self.options.text if self.schema.primary_key else self.options.log_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table that exists."""

    id: TableId
    spec: TableSpec
    created_ms: int

    @property
    def name(self) -> TableName:
        """The table's name."""
        return self.spec.name

    @property
    def schema(self) -> Schema:
        """The table's current schema."""
        return self.spec.schema

    @property
    def is_log(self) -> bool:
        """Whether this is a log table: append only, without a primary key."""
        return not self.schema.primary_key

    @property
    def is_partitioned(self) -> bool:
        """Whether it is cut into partitions, each with buckets of its own."""
        return bool(self.spec.partition_by)

    @property
    def partition_columns(self) -> tuple[Column, ...]:
        """The columns by whose values it is cut."""
        return tuple(self.schema.column(name) for name in self.spec.partition_by)

    @property
    def bucket_ids(self) -> tuple[BucketId, ...]:
        """Every bucket, in lock order, of a table that is not partitioned."""
        return self.buckets_of(None)

    def buckets_of(self, partition: Partition | None) -> tuple[BucketId, ...]:
        """Every bucket of a partition, in lock order; of the table, if it has none."""
        return tuple(self.bucket_id(bucket, partition) for bucket in range(self.spec.buckets))

    def bucket_id(self, bucket: int, partition: Partition | None = None) -> BucketId:
        """The bucket of this number."""
        if partition is None:
            return BucketId(self.id, NO_PARTITION, bucket)
        return BucketId(self.id, partition.id, bucket, partition.name)


def check_partitions_only(info: TableInfo, where: Predicate | None) -> None:
    """A changelog is chosen by partition alone: a row that leaves what is selected would leave half of a change."""
    columns = () if where is None else where.columns
    others = [name for name in columns if name not in info.spec.partition_by]
    if others or (where is not None and not info.is_partitioned):
        known = ", ".join(info.spec.partition_by) or "none"
        raise InvalidArgument(
            f"a changelog's where chooses partitions, so it names partition columns alone ({known}); filter the batches"
            " for anything else"
        )
    if where is not None:
        where.check(info.schema)


def _say(text: dict[str, str], key: str, value: str) -> None:
    # Engines are read in any case and key columns with any spacing, but column names differ by case.
    fold = str.lower if key == MERGE_ENGINE else _without_spaces
    if fold(text.setdefault(key, value)) != fold(value):
        raise InvalidSchema(f"{key} is given twice and differently: {text[key]!r} and {value!r}")


def _without_spaces(text: str) -> str:
    return ",".join(name.strip() for name in text.split(","))


def _bucket_count(text: str) -> int:
    # The length comes first: int itself raises on thousands of digits.
    if len(text) > 9 or not text.isascii() or not text.isdigit() or not 1 <= int(text) <= BUCKETS_MAX:
        raise InvalidSchema(f"{BUCKET_COUNT} is a number from 1 to {BUCKETS_MAX}, not {text[:40]!r}")
    return int(text)


def _bucket_key(text: str | None, schema: Schema, partition_by: tuple[str, ...]) -> tuple[str, ...]:
    """The bucket key: by default the primary key without the partition columns, which are the same for a partition's
    buckets; a log table without one spreads puts evenly."""
    if text is None:
        return tuple(name for name in schema.primary_key if name not in partition_by)
    if not text.strip():
        raise InvalidSchema(f"{BUCKET_KEY} names no column; leave it out to use the primary key")
    names = tuple(name.strip() for name in text.split(","))
    allowed = schema.primary_key or schema.names
    for name in names:
        if name not in allowed:
            what = "primary key column" if schema.primary_key else "column"
            raise InvalidSchema(f"{BUCKET_KEY}: {name!r} is not a {what}; choose among {', '.join(allowed)}")
        if name in partition_by:
            raise InvalidSchema(
                f"{BUCKET_KEY}: {name!r} is a partition column, which has one value in all buckets of a partition;"
                " leave it out"
            )
        if schema.column(name).type.is_nested:
            raise InvalidSchema(
                f"{BUCKET_KEY}: {name!r} is a {schema.column(name).type.shown}, and nested values are not hashed;"
                " use scalar columns"
            )
        if schema.column(name).type.is_floating:
            raise InvalidSchema(
                f"{BUCKET_KEY}: {name!r} is a {schema.column(name).type}; use a type with exact equality"
            )
    if len(set(names)) < len(names):
        raise InvalidSchema(f"{BUCKET_KEY} names a column twice: {text!r}")
    return names


def _check_hashable(key: Sequence[str], schema: Schema) -> None:
    for name in key:
        if not schema.column(name).type.is_hashable:
            raise InvalidSchema(
                f"{BUCKET_KEY}: {name!r} is a {schema.column(name).type}, which Spark hashes otherwise, so it cannot"
                " choose among several buckets; use microseconds (6 digits), or another bucket key, or one bucket"
            )
