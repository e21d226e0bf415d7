"""A table's description as bytes: the JSON record that the catalog keeps.

{"name": "web.pages", "buckets": 4, "bucket_key": ["page"], "partition_by": ["day"], "created_ms": …,
 "options": {option text},
 "schema": {"id": 1, "primary_key": ["page"],
            "columns": [{"id": 0, "name": "page", "type": "string", "nullable": false}, …]}}
"""

from typing import Any

import msgspec

from kolk.errors import Corrupted, InvalidInput
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
        columns = (
            Column(column["name"], column["type"], column["nullable"], id=column["id"])
            for column in fields["schema"]["columns"]
        )
        schema = Schema(columns, fields["schema"]["primary_key"], id=fields["schema"]["id"])
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


def describe(info: TableInfo) -> dict[str, Any]:
    """A table in plain JSON values."""
    schema = info.schema
    return {
        "name": str(info.name),
        "buckets": info.spec.buckets,
        "bucket_key": list(info.spec.bucket_key),
        **({"partition_by": list(info.spec.partition_by)} if info.is_partitioned else {}),
        "created_ms": info.created_ms,
        "options": info.spec.option_text,
        "schema": {
            "id": schema.id,
            "primary_key": list(schema.primary_key),
            "columns": [
                {"id": column.id, "name": column.name, "type": str(column.type), "nullable": column.nullable}
                for column in schema.columns
            ],
        },
    }
