"""Offsets by bucket, as people give them: text and whole numbers, of whatever class."""

from collections.abc import Mapping
from operator import index

from kolk.errors import InvalidArgument
from kolk.model.names import plain_text


def check_buckets(offsets: object, what: str) -> None:
    """Refuse numbers for buckets, which have names, though many look like numbers. What is no mapping is passed by."""
    odd = [bucket for bucket in offsets if not isinstance(bucket, str)] if isinstance(offsets, Mapping) else []
    if odd:
        raise InvalidArgument(f"{what} names a bucket {odd[0]!r}; the names of buckets are text: {{'0': 0}}")


def whole_numbers(offsets: Mapping[str, int], what: str) -> dict[str, int]:
    """Offsets as Python numbers; numpy's are welcome."""
    try:
        return {plain_text(bucket): index(offset) for bucket, offset in offsets.items()}
    except TypeError:
        raise InvalidArgument(f"{what} maps buckets to whole numbers, not {dict(offsets)!r}") from None
