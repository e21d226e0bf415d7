"""Transactions as bytes: the record of a commit in the catalog, and the head and seal of what is staged.

All of it is JSON. A record's key is ``tx/<application, quoted>/<table ids>``::

    {"app": …, "version": 7, "csn": 12, "done": false, "timestamp_ms": …, "rows": 3, "checksum": …,
     "tables": {"4": {"schema": 1, "handles": ["…"], "truncate": true,
                      "buckets": [[partition, bucket, "partition's name", base, end]]}}}

``end`` is null while it is not known.
"""

from typing import Any
from urllib.parse import quote

import msgspec

from kolk.errors import Corrupted, InvalidInput
from kolk.model.ids import BucketId, TableId
from kolk.model.options import MergeMode
from kolk.model.transaction import CommitRecord, Seal, Staging
from kolk.model.write import Action

PREFIX = "tx/"
CSN_KEY = "csn"


def app_prefix(app: str) -> str:
    """What the keys of an application's records begin with."""
    return f"{PREFIX}{quote(app, safe='')}/"


def record_key(record: CommitRecord) -> str:
    """The key of a record."""
    return app_prefix(record.app) + ",".join(map(str, record.tables))


def encode_record(record: CommitRecord) -> bytes:
    """The record of a commit."""
    tables = {
        str(table): {
            "schema": record.schemas[table],
            "handles": list(handles),
            **({"truncate": True} if table in record.truncates else {}),
            "buckets": [
                [bucket.partition, bucket.bucket, bucket.partition_name, base, record.ends.get(bucket)]
                for bucket, base in record.bases.items()
                if bucket.table == table
            ],
        }
        for table, handles in record.handles.items()
    }
    return msgspec.json.encode(
        {
            "app": record.app,
            "version": record.version,
            "csn": record.csn,
            "done": record.is_done,
            "timestamp_ms": record.timestamp_ms,
            "rows": record.rows,
            "checksum": record.checksum,
            "tables": tables,
        }
    )


def decode_record(value: bytes) -> CommitRecord:
    """The commit of a record."""
    try:
        found: dict[str, Any] = msgspec.json.decode(value)
        tables = {TableId(int(table)): fields for table, fields in found["tables"].items()}
        buckets = [
            (BucketId(table, partition, bucket, name), base, end)
            for table, fields in tables.items()
            for partition, bucket, name, base, end in fields["buckets"]
        ]
        return CommitRecord(
            app=found["app"],
            version=found["version"],
            csn=found["csn"],
            is_done=found["done"],
            handles={table: tuple(fields["handles"]) for table, fields in tables.items()},
            schemas={table: fields["schema"] for table, fields in tables.items()},
            truncates=frozenset(table for table, fields in tables.items() if fields.get("truncate")),
            bases={bucket: base for bucket, base, _ in buckets},
            timestamp_ms=found["timestamp_ms"],
            rows=found["rows"],
            checksum=found["checksum"],
            ends={bucket: end for bucket, _, end in buckets if end is not None},
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupted(f"the record of a commit cannot be read: {error}") from error


def encode_staging(staging: Staging) -> bytes:
    """What stands at the head of staged rows."""
    return msgspec.json.encode(
        {
            "handle": staging.handle,
            "app": staging.app,
            "version": staging.version,
            "table": staging.table,
            "schema": staging.schema_id,
            "action": staging.action.value,
            "columns": staging.columns,
            "mode": staging.mode.value,
            "principal": staging.principal,
        }
    )


def decode_staging(value: bytes) -> Staging:
    """The staging of such a head."""
    try:
        found: dict[str, Any] = msgspec.json.decode(value)
        columns = found["columns"]
        return Staging(
            handle=found["handle"],
            app=found["app"],
            version=found["version"],
            table=TableId(found["table"]),
            schema_id=found["schema"],
            action=Action.parse(found["action"]),
            columns=None if columns is None else tuple(columns),
            mode=MergeMode.parse(found["mode"]),
            principal=found["principal"],
        )
    except (msgspec.DecodeError, KeyError, TypeError, InvalidInput) as error:
        raise Corrupted(f"the head of staged rows cannot be read: {error}") from error


def encode_seal(seal: Seal) -> bytes:
    """What stands behind staged rows."""
    return msgspec.json.encode({"rows": seal.rows, "bytes": seal.bytes, "checksum": seal.checksum})


def decode_seal(value: bytes) -> Seal:
    """The seal of such bytes."""
    try:
        found: dict[str, Any] = msgspec.json.decode(value)
        return Seal(found["rows"], found["bytes"], found["checksum"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Corrupted(f"the seal of staged rows cannot be read: {error}") from error
