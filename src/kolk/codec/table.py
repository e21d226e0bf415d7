"""A table's description as bytes: the JSON record that the catalog keeps.

{"name": "web.pages", "buckets": 4, "bucket_key": ["page"], "partition_by": ["day"], "created_ms": …,
 "options": {option text},
 "schema": {"id": 1, "primary_key": ["page"], "next_column_id": 2,
            "columns": [{"id": 0, "name": "page", "type": "string", "nullable": false},
                        {"id": 1, "name": "pv", "type": "bigint", "nullable": true, "default": "0"}]}}

A column of an aggregation table also has ``"agg": {"function": "sum"}``, with ``"parameters"`` if there are any.
A column without a default says nothing of one, and ``next_column_id`` is left out where it is one more than the
greatest id: so the record of a table that was never altered is what it was in the first version of Kolk. The record of
an earlier version of the schema is the one that the table had before it was altered.
"""

from typing import Any

import msgspec

from kolk.errors import Corrupted, InvalidInput, InvalidSchema
from kolk.model.aggregate import Aggregate
from kolk.model.ids import TableId
from kolk.model.names import TableName
from kolk.model.options import TableOptions
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo, TableSpec


def encode_table(info: TableInfo) -> bytes:
    """The catalog record of a table; the id is the record's key."""
    return msgspec.json.encode(describe(info))


def decode_table(table: TableId, record: bytes) -> TableInfo:
    """The table of a catalog record."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(record)
        schema = _schema(fields["schema"])
        partition_by = tuple(fields.get("partition_by", ()))
        spec = TableSpec(
            name=TableName.parse(fields["name"]),
            schema=schema,
            buckets=fields["buckets"],
            bucket_key=tuple(fields["bucket_key"]),
            options=TableOptions.parse(fields["options"], schema, partition_by),
            partition_by=partition_by,
        )
        return TableInfo(id=table, spec=spec, created_ms=fields["created_ms"])
    except (msgspec.DecodeError, KeyError, TypeError, InvalidInput) as error:
        raise Corrupted(f"the catalog record of table {table} cannot be read: {error}") from error


def encode_schema(schema: Schema) -> bytes:
    """One version of a table's schema, as its record has it."""
    return msgspec.json.encode(_described_schema(schema))


def decode_schema(record: bytes) -> Schema:
    """The schema of such bytes."""
    try:
        return _schema(msgspec.json.decode(record))
    except (msgspec.DecodeError, KeyError, TypeError, InvalidInput) as error:
        raise Corrupted(f"a version of a schema cannot be read: {error}") from error


def describe(info: TableInfo) -> dict[str, Any]:
    """A table in plain JSON values."""
    return {
        "name": str(info.name),
        "buckets": info.spec.buckets,
        "bucket_key": list(info.spec.bucket_key),
        **({"partition_by": list(info.spec.partition_by)} if info.is_partitioned else {}),
        "created_ms": info.created_ms,
        "options": info.spec.option_text,
        "schema": _described_schema(info.schema),
    }


def described_for_people(info: TableInfo) -> dict[str, Any]:
    """The same, and of each aggregate what is not stored: ``input``, the type of what a put gives where that is not the
    column's, and ``problem``, why nobody can put here if so."""
    shown = describe(info)
    for column, fields in zip(info.schema.columns, shown["schema"]["columns"], strict=True):
        if column.agg is None:
            continue
        try:
            column.check_function()
            if column.input != column.type:
                fields["input"] = str(column.input)
        except InvalidSchema as error:
            fields["agg"]["problem"] = str(error)
    return shown


def _described_schema(schema: Schema) -> dict[str, Any]:
    is_next = schema.next_column_id == max(schema.by_id) + 1
    return {
        "id": schema.id,
        "primary_key": list(schema.primary_key),
        **({} if is_next else {"next_column_id": schema.next_column_id}),
        "columns": [_described(column) for column in schema.columns],
    }


def _described(column: Column) -> dict[str, Any]:
    default = {} if column.default is None else {"default": column.default}
    return {
        "id": column.id,
        "name": column.name,
        "type": str(column.type),
        "nullable": column.nullable,
        **default,
        **({} if column.agg is None else {"agg": _described_aggregate(column.agg)}),
    }


def _described_aggregate(aggregate: Aggregate) -> dict[str, Any]:
    parameters = {"parameters": dict(aggregate.parameters)} if aggregate.parameters else {}
    return {"function": aggregate.name, **parameters}


def _aggregate(fields: dict[str, Any] | None) -> Aggregate | None:
    """As it was written: whether there is such a function is for those to find out who use it."""
    if fields is None:
        return None
    return Aggregate.make(fields["function"], fields.get("parameters"))


def _schema(fields: dict[str, Any]) -> Schema:
    columns = (
        Column(
            column["name"],
            column["type"],
            column["nullable"],
            default=column.get("default"),
            agg=_aggregate(column.get("agg")),
            id=column["id"],
        )
        for column in fields["columns"]
    )
    return Schema(columns, fields["primary_key"], id=fields["id"], next_column_id=fields.get("next_column_id", 0))
