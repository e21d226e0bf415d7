"""What every writer puts, known beforehand: the content of a put follows from its writer and its count.

So a process that is killed needs to leave no more behind than which puts it was told are done; what they
held, and what the table must hold after them, anybody can work out again.
"""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

import kolk
from kolk.codec.bucketing import bucket_of
from kolk.model.ids import PlainTag

BUCKETS = 4
EVENT_BUCKETS = 2
WRITERS = 8
ROWS, EVENTS = "faults.rows", "faults.events"
COLUMNS = [
    kolk.Column("key", "string", nullable=False),
    kolk.Column("writer", "int"),
    kolk.Column("seq", "bigint"),
    kolk.Column("place", "int"),
    kolk.Column("payload", "string"),
]
ROWS_SCHEMA = kolk.Schema(COLUMNS, primary_key=["key"])
EVENTS_SCHEMA = kolk.Schema(COLUMNS)

_SHARED_KEYS = [f"shared/{number}" for number in range(200)]
_OWN_KEYS = 100
_LARGE_ROWS = 250
_DELETED_ROWS = 5

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Put:
    """One put. A delete has keys only, and only the writer's own ones, so that what they hold after it is known."""

    writer: int
    seq: int
    table: str
    is_delete: bool
    rows: tuple[Row, ...]

    @property
    def tag(self) -> PlainTag:
        """The same at every attempt."""
        return PlainTag(1_000 + self.writer, self.seq)


def put_of(writer: int, seq: int) -> Put:
    """The ``seq``-th put of a writer: small mostly, one in twenty large; every third an event, every sixth a delete."""
    rng = random.Random(writer * 1_000_003 + seq)
    own = [f"own/{writer}/{number}" for number in range(_OWN_KEYS)]
    if seq % 6 == 4:
        rows = tuple({"key": key} for key in rng.sample(own, _DELETED_ROWS))
        return Put(writer, seq, ROWS, True, rows)
    count = _LARGE_ROWS if rng.random() < 0.05 else rng.randint(1, 6)
    keys = rng.sample([*own, *_SHARED_KEYS], count)
    width = rng.choice((0, 10, 200))
    rows = tuple(
        {"key": key, "writer": writer, "seq": seq, "place": place, "payload": "x" * rng.randint(0, width)}
        for place, key in enumerate(keys)
    )
    return Put(writer, seq, EVENTS if seq % 3 == 2 else ROWS, False, rows)


def create_tables(db: kolk.Database) -> dict[str, kolk.Table]:
    """The tables of the fault tests, made if need be."""
    return {
        ROWS: db.create_table(ROWS, ROWS_SCHEMA, buckets=BUCKETS, if_not_exists=True),
        EVENTS: db.create_table(EVENTS, EVENTS_SCHEMA, buckets=EVENT_BUCKETS, if_not_exists=True),
    }


def perform(tables: dict[str, kolk.Table], put: Put) -> dict[str, int]:
    """Do the put, or do it again; the answer is its end offsets."""
    table = tables[put.table]
    if put.is_delete:
        return table.delete(list(put.rows), tag=put.tag).offsets
    return table.put(list(put.rows), tag=put.tag).offsets


@cache
def bucket_of_key(key: str) -> str:
    """The bucket in which a row of ``faults.rows`` lies."""
    column = ROWS_SCHEMA.column("key")
    batch = pa.RecordBatch.from_arrays([pa.array([key])], schema=pa.schema([column.arrow]))
    return str(bucket_of(batch, (column,), BUCKETS)[0])


def shares(put: Put) -> dict[str, list[Row]]:
    """The rows of a put by bucket. Without a bucket key a whole put goes to the bucket that its tag chooses."""
    if put.table == EVENTS:
        return {str((put.tag.writer + put.tag.seq) % EVENT_BUCKETS): list(put.rows)}
    found: dict[str, list[Row]] = {}
    for row in put.rows:
        found.setdefault(bucket_of_key(row["key"]), []).append(row)
    return found
