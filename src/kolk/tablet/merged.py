"""What a bucket is to write, ready before anything is decided: nothing in it can fail for its data any more."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kolk.codec.buffers import binary_offsets
from kolk.codec.frame import BODY_BYTES_MAX
from kolk.errors import TooLarge
from kolk.merge.changes import Changes, KvWrites
from kolk.model.ids import TransactionTag, WriteTag
from kolk.storage.log import PendingFrame


@dataclass(frozen=True, slots=True)
class Framed:
    """Changes as the body of a frame, and how many they are."""

    rows: int = 0
    body: pa.Buffer | None = None

    def frame(self, tag: WriteTag, schema_id: int, timestamp_ms: int, *, more: bool = False) -> PendingFrame:
        """The frame with this body."""
        return PendingFrame(
            tag=tag, schema_id=schema_id, rows=self.rows, body=self.body, timestamp_ms=timestamp_ms, more=more
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """A bucket's share of a transaction: of each of its writes what the KV and what the log is to have, and whether
    every row goes first."""

    writes: Sequence[KvWrites]
    frames: Sequence[Framed]
    truncates: bool = False


def framed(changes: Changes) -> Framed:
    """Changes as the log has them; TooLarge if no frame holds them."""
    body = None if changes.rows is None else changes.rows.serialize()
    if body is not None and body.size > BODY_BYTES_MAX:
        raise TooLarge(f"the changes take {body.size:,} bytes, more than a log frame holds; put fewer rows at once")
    return Framed(changes.count, body)


def grouped(parts: Iterable[Framed], csn: int, schema_id: int, timestamp_ms: int) -> Iterator[PendingFrame]:
    """The frames of a transaction's share: all but the last say that there are more, and one there is at least."""
    waiting, part = None, -1
    for following in parts:
        if waiting is not None:
            yield waiting.frame(TransactionTag(csn, part), schema_id, timestamp_ms, more=True)
        waiting, part = following, part + 1
    yield (waiting or Framed()).frame(TransactionTag(csn, max(part, 0)), schema_id, timestamp_ms)


def fitting(values: pa.BinaryArray, size: int) -> int:
    """How many of the first values take no more than so many bytes; one at least."""
    offsets = binary_offsets(values).astype(np.int64)
    return max(int(np.searchsorted(offsets[1:] - offsets[0], size, side="right")), 1)
