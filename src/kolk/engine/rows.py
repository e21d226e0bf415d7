"""Rows by key: what is written and looked up goes to its buckets from here, and the answers are put together.

What comes in is not trusted: rows are checked against the table before the first bucket sees any of them. A put is
atomic in each bucket, and told bucket by bucket if it fails in some.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from kolk.codec.row import stored_values
from kolk.config import EngineConfig
from kolk.engine.routing import Routing
from kolk.engine.tablets import Tablets
from kolk.errors import (
    InternalError,
    InvalidArgument,
    KolkError,
    OutcomeUnknown,
    PartialPut,
    PartitionDropped,
    TooLarge,
)
from kolk.merge.engine import Merger, Prepared
from kolk.model.ids import BucketId, OwnerTag, PlainTag
from kolk.model.rows import checked_rows
from kolk.model.schema import Schema
from kolk.model.table import TableInfo
from kolk.model.write import Write, expected_columns
from kolk.tablet.readers import size_of

GET_KEYS_MAX = 1_000_000


class Rows:
    """Writes and looks up rows. Thread-safe: it has no state, and what it touches has locks of its own."""

    def __init__(self, tablets: Tablets, routing: Routing, config: EngineConfig) -> None:
        self._tablets = tablets
        self._routing = routing
        self._config = config

    def put(self, info: TableInfo, schema: Schema, write: Write, tag: PlainTag | OwnerTag) -> dict[str, int]:
        """Apply a write once; the answer is where the log of each bucket that it touched ends."""
        schema.check_functions()
        self._check_count(write.rows)
        wanted = expected_columns(schema, write.action, write.columns, write.mode)
        write = replace(write, rows=checked_rows(write.rows, wanted), schema_id=schema.id)
        self._check_size(write.rows)
        prepared = self._tablets.merger(info).prepare(write)
        shares = self._routing.split(info, prepared, _spread(tag))
        acknowledged: dict[str, int] = {}
        failed: dict[str, KolkError] = {}
        # No more at once than may be open: rows of a thousand partitions need not have them all in memory.
        for start in range(0, len(shares), self._tablets.open_max):
            self._apply(info, shares[start : start + self._tablets.open_max], tag, acknowledged, failed)
        if (acknowledged and failed) or any(isinstance(error, OutcomeUnknown) for error in failed.values()):
            # Nobody knows yet whether such a bucket has the put, so its tag must not be lost.
            raise PartialPut(acknowledged, failed, tag if isinstance(tag, PlainTag) else PlainTag(0, tag.seq))
        for error in failed.values():
            raise error
        return acknowledged

    def get(self, info: TableInfo, schema: Schema, keys: pa.RecordBatch, names: Sequence[str] | None) -> pa.RecordBatch:
        """The rows of these keys, in the order of the keys; a key that has no row is left out."""
        codec = self._merger(info).codec
        if keys.num_rows > GET_KEYS_MAX:
            raise TooLarge(f"one lookup takes at most {GET_KEYS_MAX:,} keys, not {keys.num_rows:,}; scan instead")
        keys = checked_rows(keys, schema.key_columns)
        found = self._gather(info, schema, keys, codec.keys_of(schema).encode(keys).to_pylist())
        # Asked for anew, after the rows were read: they may be of a version that came in between.
        codec = self._merger(info).codec
        if len(found) == 1 and found[0] is not None:
            return codec.decode_one_as(schema, found[0], names)
        return codec.decode_as(schema, stored_values(found).drop_null(), names)

    def prefix(
        self, info: TableInfo, schema: Schema, rows: pa.RecordBatch, names: Sequence[str] | None
    ) -> pa.RecordBatch:
        """The rows whose keys start with the values of this one row, in key order."""
        codec = self._merger(info).codec
        columns = schema.key_columns[: rows.num_columns]
        rows = checked_rows(rows, columns)
        if rows.num_rows != 1:
            raise InvalidArgument(f"a prefix lookup takes one prefix, not {rows.num_rows}")
        given = {column.id for column in columns}
        if not {info.schema.column(name).id for name in info.spec.bucket_key} <= given and info.spec.buckets > 1:
            raise InvalidArgument(
                f"a prefix must hold the bucket key ({', '.join(info.spec.bucket_key)}), so that it lies in one"
                " bucket; create the table with bucket_key=[...] naming the first key columns"
            )
        if not {info.schema.column(name).id for name in info.spec.partition_by} <= given:
            raise InvalidArgument(
                f"a prefix must hold the partition columns ({', '.join(info.spec.partition_by)}), so that it lies in"
                " one partition; put them first in the primary key"
            )
        start = codec.keys_of(schema).encode_prefix(rows, rows.num_columns)[0].as_py()
        values: list[bytes] = []
        for bucket, _ in self._routing.find(info, rows, schema):
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                values = tablet.between(start, _successor(start))
        return self._merger(info).codec.decode_as(schema, stored_values(values), names)

    # --- inside

    def _apply(
        self,
        info: TableInfo,
        shares: Sequence[tuple[BucketId, Prepared]],
        tag: PlainTag | OwnerTag,
        acknowledged: dict[str, int],
        failed: dict[str, KolkError],
    ) -> None:
        """Let each bucket have its share of a put, and note what became of it."""
        try:
            with self._tablets.use(info, [bucket for bucket, _ in shares]) as tablets:
                for tablet, (bucket, share) in zip(tablets, shares, strict=True):
                    try:
                        acknowledged[bucket.name] = tablet.put(share, tag)
                    except KolkError as error:
                        failed[bucket.name] = error
                    except Exception as error:  # noqa: BLE001 - raised with what became of the other buckets
                        failed[bucket.name] = InternalError(f"bucket {bucket.name}: {error!r}")
                        failed[bucket.name].__cause__ = error
        except KolkError as error:
            # They cannot be opened, so none of them has any of it.
            if not acknowledged and not failed:
                raise
            failed.update({bucket.name: error for bucket, _ in shares})

    def _check_count(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows > self._config.put_rows_max:
            raise self._too_large(f"{rows.num_rows:,} rows")

    def _check_size(self, rows: pa.RecordBatch) -> None:
        """Only for rows that were validated: to tell their size Arrow follows their offsets, wherever they lead."""
        if rows.nbytes > self._config.put_bytes_max:
            raise self._too_large(f"{rows.nbytes:,} bytes")

    def _too_large(self, has: str) -> TooLarge:
        return TooLarge(
            f"a put takes at most {self._config.put_rows_max:,} rows and {self._config.put_bytes_max:,} bytes, this one"
            f" has {has}; put it in pieces, for instance"
            " `for piece in data.to_batches(max_chunksize=100_000): table.put(piece)`"
        )

    def _gather(
        self, info: TableInfo, schema: Schema, keys: pa.RecordBatch, encoded: list[bytes]
    ) -> list[bytes | None]:
        """Look keys up in their buckets and put the answers in their places; TooLarge if they are too much together."""
        found: list[bytes | None] = [None] * len(encoded)
        taken = 0
        for bucket, places in self._routing.find(info, keys, schema):
            with suppress(PartitionDropped), self._tablets.use_one(info, bucket) as tablet:
                if places is None:
                    return tablet.get(encoded)
                values = tablet.get([encoded[place] for place in places], taken)
                taken += size_of(values)
                for place, value in zip(places, values, strict=True):
                    found[place] = value
        return found

    def _merger(self, info: TableInfo) -> Merger:
        info.schema.check_known()
        return self._tablets.keyed_merger(info)


def _spread(tag: PlainTag | OwnerTag) -> int:
    return tag.writer + tag.seq if isinstance(tag, PlainTag) else tag.owner


def _successor(prefix: bytes) -> bytes:
    """The first key after all keys that start with ``prefix``; row keys start with 0x01, so there always is one."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
