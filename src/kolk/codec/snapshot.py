"""A snapshot's manifest as bytes: a line of JSON that says what the snapshot is, behind its checksum.

    4f1c09ab {"version":1,"id":7,"offset":4711,"rows":42,"schema_id":1,"taken_ms":…,"new_bytes":…,
              "files":[["000008.sst",22229268,"<40 hexadecimal digits>"], …]}

It is published whole or not at all, so one that does not agree with its checksum is damaged, never half written.
"""

import re
import zlib

import msgspec

from kolk.errors import Corrupted
from kolk.model.snapshot import Snapshot, SnapshotFile

_VERSION = 1
_SUM_LENGTH = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The manifest of a snapshot."""
    fields = {
        "version": _VERSION,
        "id": snapshot.id,
        "offset": snapshot.offset,
        "rows": snapshot.rows,
        "schema_id": snapshot.schema_id,
        "taken_ms": snapshot.taken_ms,
        "new_bytes": snapshot.new_bytes,
        "files": [(file.name, file.size, file.digest) for file in snapshot.files],
    }
    body = msgspec.json.encode(fields)
    return _sum(body) + b" " + body + b"\n"


def decode_snapshot(name: str, record: bytes) -> Snapshot:
    """The snapshot of such a manifest; Corrupted, naming it, if it is damaged."""
    body = record[_SUM_LENGTH + 1 : -1]
    if record != _sum(body) + b" " + body + b"\n":
        raise Corrupted(f"the manifest {name} is damaged; an earlier snapshot and the log stand in for it")
    try:
        fields = msgspec.json.decode(body, type=_Fields)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupted(f"the manifest {name} cannot be read: {error}") from error
    if fields.version != _VERSION:
        raise Corrupted(f"the manifest {name} has version {fields.version}, this Kolk reads {_VERSION}: upgrade Kolk")
    strange = next((name for name, _, _ in fields.files if not _NAME.fullmatch(name)), None)
    if strange is not None:  # it becomes a path
        raise Corrupted(f"the manifest {name} names a file {strange[:100]!r}, which is none of RocksDB's")
    return Snapshot(
        id=fields.id,
        offset=fields.offset,
        rows=fields.rows,
        schema_id=fields.schema_id,
        taken_ms=fields.taken_ms,
        files=tuple(SnapshotFile(*file) for file in fields.files),
        new_bytes=fields.new_bytes,
    )


class _Fields(msgspec.Struct):
    version: int
    id: int
    offset: int
    rows: int | None
    schema_id: int
    taken_ms: int
    new_bytes: int
    files: list[tuple[str, int, str]]


def _sum(body: bytes) -> bytes:
    return f"{zlib.crc32(body):08x}".encode()
