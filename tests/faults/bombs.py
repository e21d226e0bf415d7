"""Small messages that would be large, deep or endless if anybody believed them."""

from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from tests.faults.mutations import get_message, put_message, stage_message
from tests.faults.targets import UNKNOWN_SCAN, Targets

from kolk.codec.token import KEY_BYTES, Token, Tokens
from kolk.model.scan import Place
from kolk.wire import messages as m
from kolk.wire import transactions as t

LONG = 1_000_000
DEEP = 500
_ITEMS = 77_777


@cache
def compressed_batch() -> pa.RecordBatch:
    """200 MB that zstd makes a few kilobytes of."""
    return pa.record_batch([pa.array(["x" * 100] * 2_000_000)], names=["text"])


def ipc_messages(batch: pa.RecordBatch, **options: Any) -> list[bytes]:
    """The Arrow messages of a batch: schema, dictionaries, rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return [message.serialize().to_pybytes() for message in pa.ipc.MessageReader.open_stream(sink.getvalue())]


def _put(table: int, schema: pa.Schema, rows: bytes) -> bytes:
    head = m.Put(table=table, writer=bytes(16), seq=0, schema=schema.serialize().to_pybytes())
    return m.join(head, pa.py_buffer(rows)).to_pybytes()


def _stage(table: int, schema: pa.Schema, rows: bytes) -> bytes:
    fields = {"handle": "b" * 32, "app": "bomb", "version": 1, "table": table, "schema_id": 1, "number": 0}
    return m.join(t.Stage(**fields, schema=schema.serialize().to_pybytes()), pa.py_buffer(rows)).to_pybytes()


def _head(encoded: bytes) -> bytes:
    return len(encoded).to_bytes(4, "little") + encoded


def _batches() -> dict[str, pa.RecordBatch]:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array(["x" * 1_000]))
    return {
        "2e9 nulls": pa.RecordBatch.from_arrays([pa.nulls(2 * 10**9)], names=["text"]),
        "2 TB of runs": pa.RecordBatch.from_arrays([runs], names=["text"]),
        "20,000 columns": pa.RecordBatch.from_arrays([pa.array([1])] * 20_000, [f"c{n}" for n in range(20_000)]),
        "a long name": pa.RecordBatch.from_arrays([pa.array([1])], names=["x" * LONG]),
    }


def _deep_schema() -> pa.Schema:
    deep: Any = pa.int64()
    for _ in range(DEEP):
        deep = pa.list_(deep)
    return pa.schema([("text", deep)])


def _misled(targets: Targets, column: str, to: int) -> bytes:
    """A put whose nested values say, in an offset, that they lie where there is nothing. The header is as it was."""
    row = targets.batch.slice(2, 1).to_pylist()[0]
    items = [("a", 1)] if column == "tags" else [{"name": "x", "count": 1}]
    rows = pa.RecordBatch.from_pylist([row | {column: items * _ITEMS}], schema=targets.batch.schema)
    message = put_message(targets.rows, rows)
    body = len(message) - pa.ipc.read_message(rows.serialize()).body.size
    offset = _ITEMS.to_bytes(4, "little")
    assert offset in message[body:]
    return message[:body] + message[body:].replace(offset, to.to_bytes(4, "little", signed=True))


def bomb_calls(targets: Targets) -> dict[str, bytes]:
    """Messages for an exchange, by name."""
    ours = targets.event_batch.schema
    events = pa.RecordBatch.from_arrays([compressed_batch().column(0), pa.nulls(2_000_000, pa.float64())], schema=ours)
    words = pa.RecordBatch.from_arrays([pa.array(["a", "b"]).dictionary_encode(), pa.array([1.0, 2.0])], ours.names)
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    found = {
        "zstd": _put(targets.events, ours, ipc_messages(events, compression="zstd")[-1]),
        "lz4": _put(targets.events, ours, ipc_messages(events, compression="lz4")[-1]),
        "a deep type": _put(targets.events, _deep_schema(), b""),
        "staged zstd": _stage(targets.events, ours, ipc_messages(events, compression="zstd")[-1]),
        "a deep type, staged": _stage(targets.events, _deep_schema(), b""),
        "a batch far behind": stage_message(targets.events, targets.event_batch, number=2**63 - 1),
        "a path for a handle": stage_message(targets.events, targets.event_batch, handle="../" * 10 + "xy"),
        "a long app": stage_message(targets.events, targets.event_batch, app="x" * LONG),
        "10,000 columns, staged": stage_message(targets.rows, targets.batch, columns=list(range(10_000))),
        "deep lists": _head(b"\x91" * 100_000),
        "deep maps": _head(b"\x81\xa1a" * 100_000),
        "a long list": _head(b"\xdd\xff\xff\xff\xff"),
        "a long text": _head(b"\xdb\xff\xff\xff\xff"),
        "a head of 4 GB": b"\xff" * 64,
        "a head of noise": _head(b"\xc1" * m.HEAD_BYTES_MAX),
        "a long mode": put_message(targets.events, targets.event_batch, mode="x" * LONG),
        "a long column": put_message(targets.rows, targets.batch, columns=["x" * LONG]),
        "a delete in a log table": put_message(targets.events, nothing, action="delete"),
        "an unknown table": put_message(2**63 - 1, targets.event_batch),
        "more keys than one prefix has": get_message(targets.rows, targets.keys, prefix=2),
        "no prefix": get_message(targets.rows, targets.keys.slice(0, 0), prefix=2),
        "keys of a log table": get_message(targets.events, nothing),
        "a message over the limit": bytes(64 * 2**20 + 1),
        "a list far behind its items": _misled(targets, "items", 2**30),
        "a list far before its items": _misled(targets, "items", -(2**31)),
        "a map far behind its entries": _misled(targets, "tags", 2**30),
        "a map far before its entries": _misled(targets, "tags", -(2**31)),
    }
    for name, batch in _batches().items():
        rows = batch.serialize().to_pybytes()
        found[f"{name}, its own schema"] = _put(targets.events, batch.schema, rows)
        found[f"{name}, our schema"] = _put(targets.events, ours, rows)
        found[f"{name}, staged"] = _stage(targets.events, ours, rows)
    for place, message in enumerate(ipc_messages(words)):
        found[f"dictionary message {place}"] = _put(targets.events, ours, message)
    return found


def bomb_heads() -> dict[str, bytes]:
    """Actions, by name."""

    def create(**changes: Any) -> bytes:
        columns = [m.ColumnText("id", "int", False)]
        return m.encode(m.CreateTable(**({"name": "bomb", "columns": columns, "primary_key": ["id"]} | changes)))

    def typed(text: str) -> bytes:
        return create(columns=[m.ColumnText("id", text)], primary_key=[])

    return {
        "a deep type": typed("array<" * DEEP + "int" + ">" * DEEP),
        "a very deep type": typed("array<" * 100_000 + "int" + ">" * 100_000),
        "a wide type": typed("row<" + ", ".join(f"f{number} int" for number in range(20_000)) + ">"),
        "a long type": typed("int" * LONG),
        "a number of 5,000 digits": typed(f"char({'9' * 5_000})"),
        "a long table name": create(name="x" * LONG),
        "a long column name": create(columns=[m.ColumnText("x" * LONG, "int")], primary_key=[]),
        "20,000 columns": create(columns=[m.ColumnText(f"c{number}", "int") for number in range(20_000)]),
        "a long key": create(primary_key=["x" * LONG]),
        "a long bucket key": create(bucket_key=["x" * LONG]),
        "a long option": create(options={"x" * LONG: "1"}),
        "100,000 options": create(options={str(number): "1" for number in range(100_000)}),
        "2^63 buckets": create(buckets=2**63 - 1),
        "-1 buckets": create(buckets=-1),
        "buckets of 5,000 digits": create(options={"bucket.num": "9" * 5_000}),
        "a path for a name": m.encode(m.GetTable(name="../../etc/passwd")),
        "an unknown id": m.encode(m.Bounds(table=2**63 - 1)),
        "an unknown id to empty": m.encode(m.Truncate(table=2**63 - 1)),
        "another protocol": m.encode(m.Hello(protocol=-(2**63), client="x" * LONG)),
        "joining no scan": m.encode(m.JoinScan(scan="")),
        "joining an unknown scan": m.encode(m.JoinScan(scan=UNKNOWN_SCAN)),
        "joining a long id": m.encode(m.JoinScan(scan="0" * LONG)),
        "closing a long id": m.encode(m.CloseScan(scan="0" * LONG)),
        "closing a long nonce": m.encode(m.CloseScan(nonce="0" * LONG)),
        "a commit of nothing": m.encode(t.Commit(app="bomb", version=1, tables=[])),
        "a commit of 20,000 tables": m.encode(
            t.Commit(app="bomb", version=1, tables=[t.CommitTable(number, []) for number in range(20_000)])
        ),
        "a commit of 100,000 handles": m.encode(
            t.Commit(app="bomb", version=1, tables=[t.CommitTable(1, [f"{n:032x}" for n in range(100_000)])])
        ),
        "a commit of a long app": m.encode(t.Commit(app="x" * LONG, version=1, tables=[t.CommitTable(1, [])])),
        "discarding 100,000 handles": m.encode(t.Discard([f"{n:032x}" for n in range(100_000)])),
        "deep lists": b"\x91" * 100_000,
        "a long list": b"\xdd\xff\xff\xff\xff",
        "5 MB of noise": b"\xc1" * (5 * 2**20),
        "nothing": b"",
    }


def bomb_scans(targets: Targets) -> dict[str, bytes]:
    """Messages that ask for scans or their pages, by name."""

    def scan(**changes: Any) -> bytes:
        return _raw({"op": "open_scan", "table": targets.rows, "page_bytes": 65_536} | changes)

    def page(**changes: Any) -> bytes:
        return _raw({"op": "next_page", "scan": targets.scan, "cursor": "c", "seq": 0, "page_bytes": 65_536} | changes)

    sizes = {"0": 0, "-1": -1, "-2^63": -(2**63), "2^31": 2**31, "2^64 - 1": 2**64 - 1, "no number": 1.5}
    lives = {"0": 0.0, "-1": -1.0, "NaN": float("nan"), "inf": float("inf"), "1e300": 1e300, "the least": -5e-324}
    return {
        **{f"pages of {name} bytes": scan(page_bytes=size) for name, size in sizes.items()},
        **{f"a next page of {name} bytes": page(page_bytes=size) for name, size in sizes.items()},
        **{f"a ttl of {name}": scan(ttl_seconds=ttl) for name, ttl in lives.items()},
        **{f"a ttl of {name} and no row": scan(ttl_seconds=ttl, limit=0) for name, ttl in lives.items()},
        **{f"bucket {bucket[:5]!r}": scan(buckets=[bucket]) for bucket in _BUCKETS},
        **{f"{what} of bucket {bucket[:5]!r}": page(cursor=f"{what}{place}", buckets=[bucket])
           for what in "pq" for place, bucket in enumerate(_BUCKETS)},
        **{f"a scan after {name}": scan(resume=token) for name, token in _tokens(targets).items()},
        **{f"a page after {name}": page(cursor="t", token=token) for name, token in _tokens(targets).items()},
        **{f"a page of {name}": page(scan=scan_id) for name, scan_id in _SCANS.items()},
        "no column": scan(names=[]),
        "a column twice": scan(names=["key", "key"]),
        "a long column": scan(names=["x" * LONG]),
        "1,601 columns": scan(names=["key"] * 1_601),
        "no row": scan(limit=0),
        "2^63 - 1 rows": scan(limit=2**63 - 1),
        "2^63 rows": scan(limit=2**63),
        "-1 rows": scan(limit=-1),
        "no predicate": scan(where=""),
        "a deep predicate": scan(where="NOT (" * 50_000),
        "a long predicate": scan(where="key = 'x' OR " * 300_000),
        "a number of 200,000 digits": scan(where=f"price > {'9' * 200_000}"),
        "an exponent of 200,000 digits": scan(where=f"price > 1e{'9' * 200_000}"),
        "a predicate of another table": scan(where="day = 'a'"),
        "an unknown table": scan(table=2**63 - 1),
        "a table without keys": scan(table=targets.events),
        "an unknown version": scan(schema_id=65_535),
        "10,001 buckets": scan(buckets=["0"] * 10_001),
        "a page of 10,001 buckets": page(buckets=["0"] * 10_001),
        "a long nonce": scan(nonce="x" * 201),
        "a very long nonce": scan(nonce="x" * LONG),
        "the nonce of another scan": scan(nonce="target", limit=1),
        "a partition that is not there": scan(table=targets.parts, buckets=["day=z/hour=1/0"]),
        "a token of another query": scan(resume=targets.token, where="price > 1"),
        "a token of another table": scan(table=targets.parts, resume=targets.token),
        "no cursor": page(cursor=""),
        "a long cursor": page(cursor="x" * 65),
        "a cursor that begins at 1": page(cursor="begins", seq=1),
        "the last seq of all": page(seq=2**63 - 1),
        "a negative seq": page(seq=-1),
    }  # fmt: skip


_BUCKETS = ("", "-1", "4", "9" * 18, "0" * 5_000, "x" * LONG, "²", "\0", "٣", "0/0", "day=a/hour=7/0")
_SCANS = {"no scan": "", "an unknown scan": UNKNOWN_SCAN, "a scan of noise": "\0é" * 16, "a long id": "0" * 65}


def _tokens(targets: Targets) -> dict[str, str]:
    """Tokens that this database has not written just so."""
    good = targets.token
    other = Tokens(bytes(KEY_BYTES)).encode(Token(targets.scan, bytes(16), Place()))
    return {
        "noise": "no",
        "an open end": good[:-1],
        "one bit changed": good[:10] + ("A" if good[10] != "A" else "B") + good[11:],
        "a good one twice": good * 2,
        "one with another's code": other,
        "a giant": "A" * LONG,
        "no ASCII": "é" * 40,
        "a NUL": "\0",
        "padding alone": "====",
    }


def _raw(fields: dict[str, Any]) -> bytes:
    """A message whose head no struct has checked."""
    return _head(msgspec.msgpack.encode(fields))


def bomb_tickets(targets: Targets) -> dict[str, bytes]:
    """Tickets, by name."""

    def follow(starts: dict[str, int], stops: dict[str, int | None] | None = None) -> bytes:
        return m.encode(m.Follow(table=targets.rows, starts=starts, stops=stops or {}))

    def read(**changes: Any) -> bytes:
        return msgspec.msgpack.encode({"op": "read_scan", "scan": targets.scan} | changes)

    return {
        **{f"bucket {place}: {bucket[:5]!r}": follow({bucket: 0}) for place, bucket in enumerate(_BUCKETS)},
        **{f"a scan of bucket {bucket[:5]!r}": read(buckets=[bucket]) for bucket in _BUCKETS},
        **{f"a scan after {name}": read(token=token) for name, token in _tokens(targets).items()},
        **{f"{name}": read(scan=scan_id) for name, scan_id in _SCANS.items()},
        "an offset before the start": follow({"0": -1}),
        "the first offset of all": follow({"0": -(2**63)}),
        "an offset beyond the end": follow({"0": 10**9}, {"0": 10**9 + 1}),
        "the last offset of all": follow({"0": 2**63 - 1}, {"0": 2**63 - 1}),
        "a stop before the start": follow({"0": 0}, {"0": -(2**63)}),
        "no bucket": follow({}),
        "300,000 stops": follow({"0": 0}, {str(number): 0 for number in range(300_000)}),
        "a scan of no bucket": read(buckets=[]),
        "a scan of 10,001 buckets": read(buckets=["0"] * 10_001),
        "deep lists": b"\x91" * 100_000,
        "5 MB of noise": b"\xc1" * (5 * 2**20),
        "nothing": b"",
    }
