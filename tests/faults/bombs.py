"""Small messages that would be large, deep or endless if anybody believed them."""

from functools import cache
from typing import Any

import pyarrow as pa
from tests.faults.mutations import get_message, put_message
from tests.faults.targets import Targets

from kolk.wire import messages as m

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
        "deep lists": _head(b"\x91" * 100_000),
        "deep maps": _head(b"\x81\xa1a" * 100_000),
        "a long list": _head(b"\xdd\xff\xff\xff\xff"),
        "a long text": _head(b"\xdb\xff\xff\xff\xff"),
        "a head of 4 GB": b"\xff" * 64,
        "a head of noise": _head(b"\xc1" * m.HEAD_BYTES_MAX),
        "a long mode": put_message(targets.events, targets.event_batch, mode="x" * LONG),
        "a long column": put_message(targets.rows, targets.batch, columns=["x" * LONG]),
        "a delete in a log table": put_message(targets.events, nothing, delete=True),
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
        "deep lists": b"\x91" * 100_000,
        "a long list": b"\xdd\xff\xff\xff\xff",
        "5 MB of noise": b"\xc1" * (5 * 2**20),
        "nothing": b"",
    }


def bomb_tickets(table: int) -> dict[str, bytes]:
    """Tickets, by name."""

    def follow(starts: dict[str, int], stops: dict[str, int | None] | None = None) -> bytes:
        return m.encode(m.Follow(table=table, starts=starts, stops=stops or {}))

    buckets = ["", "-1", "4", "9" * 18, "0" * 5_000, "9" * 5_000, "x" * LONG, "²", "\0", "٣"]
    return {
        **{f"bucket {place}: {bucket[:5]!r}": follow({bucket: 0}) for place, bucket in enumerate(buckets)},
        "an offset before the start": follow({"0": -1}),
        "the first offset of all": follow({"0": -(2**63)}),
        "an offset beyond the end": follow({"0": 10**9}, {"0": 10**9 + 1}),
        "the last offset of all": follow({"0": 2**63 - 1}, {"0": 2**63 - 1}),
        "a stop before the start": follow({"0": 0}, {"0": -(2**63)}),
        "no bucket": follow({}),
        "300,000 stops": follow({"0": 0}, {str(number): 0 for number in range(300_000)}),
        "no column": m.encode(m.Scan(table=table, names=[])),
        "a column twice": m.encode(m.Scan(table=table, names=["key", "key"])),
        "a long column": m.encode(m.Scan(table=table, names=["x" * LONG])),
        "no row": m.encode(m.Scan(table=table, limit=0)),
        "2^63 rows": m.encode(m.Scan(table=table, limit=2**63 - 1)),
        "no predicate": m.encode(m.Scan(table=table, where="")),
        "a deep predicate": m.encode(m.Scan(table=table, where="NOT (" * 50_000)),
        "a long predicate": m.encode(m.Scan(table=table, where="key = 'x' OR " * 300_000)),
        "a number of 200,000 digits": m.encode(m.Scan(table=table, where=f"price > {'9' * 200_000}")),
        "an exponent of 200,000 digits": m.encode(m.Scan(table=table, where=f"price > 1e{'9' * 200_000}")),
        "an unknown table": m.encode(m.Scan(table=2**63 - 1)),
        "deep lists": b"\x91" * 100_000,
        "5 MB of noise": b"\xc1" * (5 * 2**20),
        "nothing": b"",
    }
