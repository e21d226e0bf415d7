"""A cut as bytes: the record that says which snapshots of a table are of one moment.

JSON: ``[[partition, [bucket, snapshot, bucket, snapshot, …]], …]``, all of them numbers.
"""

import msgspec

from kolk.errors import Corrupted
from kolk.model.ids import BucketId, TableId


def encode_cut(cut: dict[BucketId, int]) -> bytes:
    """The record of a cut."""
    partitions: dict[int, list[int]] = {}
    for bucket in sorted(cut):
        partitions.setdefault(bucket.partition, []).extend((bucket.bucket, cut[bucket]))
    return msgspec.json.encode(list(partitions.items()))


def decode_cut(table: TableId, record: bytes) -> dict[BucketId, int]:
    """The cut of such a record; the buckets come without the names of their partitions."""
    try:
        partitions = msgspec.json.decode(record, type=list[tuple[int, list[int]]])
        return {
            BucketId(table, partition, bucket): snapshot
            for partition, numbers in partitions
            for bucket, snapshot in zip(numbers[::2], numbers[1::2], strict=True)
        }
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupted(f"the record of the snapshots of table {table} cannot be read: {error}") from error
