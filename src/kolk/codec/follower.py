"""A follower as bytes: the JSON record that meta keeps.

{"epoch": 7, "reader": "<32 hexadecimal digits>", "used_ms": …, "released": false, "offsets": {"0": 42, …}}
"""

from typing import Any

import msgspec

from kolk.errors import Corrupted
from kolk.model.follower import Bookmark

PREFIX = "follower/"
EPOCH_KEY = "next-follower-epoch"


def encode_bookmark(bookmark: Bookmark) -> bytes:
    """The record of a follower; its table and name are the record's key. At 4,096 buckets it has about 100 KB."""
    return msgspec.json.encode(
        {
            "epoch": bookmark.epoch,
            "reader": f"{bookmark.reader:032x}",
            "used_ms": bookmark.used_ms,
            "released": bookmark.is_released,
            "offsets": dict(bookmark.offsets),
        }
    )


def decode_bookmark(key: str, record: bytes) -> Bookmark:
    """The follower of such a record."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(record)
        return Bookmark(
            epoch=int(fields["epoch"]),
            reader=int(fields["reader"], 16),
            offsets={str(bucket): int(offset) for bucket, offset in fields["offsets"].items()},
            used_ms=int(fields["used_ms"]),
            is_released=bool(fields["released"]),
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupted(f"the record {key} cannot be read: {error}; restore meta.sqlite from a backup") from error
