"""What is stored under the keys of a pass: read at once if it is not too much, and kept up to date as its puts are
merged.

A few bytes of keys may stand for gigabytes of rows, and they are read while everybody waits. So a read has a limit:
what is too much for the puts of a pass together is read put by put, and what is too much for one put fails that put.
"""

from collections.abc import Sequence
from itertools import repeat

import pyarrow as pa

from kolk.codec.buffers import BATCH_BYTES_MAX
from kolk.codec.row import stored_values
from kolk.errors import TooLarge
from kolk.merge.changes import KvWrites
from kolk.merge.prepared import Prepared
from kolk.storage.kv import Kv
from kolk.tablet.readers import values_of

PASS_BYTES = 256 * 2**20
"""About how much the puts of one pass read together: what comes after that has its own pass, but for a single put."""


class Stored:
    """The old rows of one pass. Guarded by the tablet's lock."""

    def __init__(self, kv: Kv, puts: Sequence[Prepared], *, is_empty: bool = False) -> None:
        """What the KV has, or nothing, for puts that come after everything was removed."""
        self._kv = kv
        self._is_empty = is_empty
        self._is_alone = len(puts) == 1
        self._taken = 0
        # What the puts so far have written, and, if it was not too much, all that was there before.
        self._current: dict[bytes, bytes | None] = {}
        self._has_all = False
        seeing = [put for put in puts if not put.blind]
        if seeing and not self._is_alone:
            self._read_all(sorted(set[bytes]().union(*(put.keys for put in seeing))))

    @property
    def has_room(self) -> bool:
        """Whether another put may be merged in this pass."""
        return self._taken <= PASS_BYTES

    def olds(self, put: Prepared) -> pa.BinaryArray:
        """What is stored under each of the put's keys, null for nothing; TooLarge if that is too much."""
        if put.blind:
            return pa.array([], pa.binary())
        if self._has_all:
            return stored_values(list(map(self._current.__getitem__, put.keys)))
        found = stored_values(self._read(put))
        self._taken += found.nbytes
        return found

    def overlay(self, writes: KvWrites) -> None:
        """Let the later puts of the pass see this one."""
        if not self._is_alone:
            self._current.update(zip(writes.keys, writes.values, strict=True))
            self._current.update(zip(writes.deletes, repeat(None)))

    def _read_all(self, keys: list[bytes]) -> None:
        try:
            values = repeat(None, len(keys)) if self._is_empty else values_of(self._kv, keys, bytes_max=PASS_BYTES)
        except TooLarge:
            return  # each put reads its own
        self._current = dict(zip(keys, values, strict=True))
        self._has_all = True

    def _read(self, put: Prepared) -> list[bytes | None]:
        """What the KV has under the keys of one put, where no other put of the pass has written."""
        if self._is_empty:
            return list(map(self._current.get, put.keys))
        try:
            values = values_of(self._kv, put.keys, bytes_max=BATCH_BYTES_MAX)
        except TooLarge:
            raise TooLarge(
                f"the rows that are stored under the keys of this put take more than {BATCH_BYTES_MAX:,} bytes"
                " together; put, or delete, fewer rows at once"
            ) from None
        return list(map(self._current.get, put.keys, values)) if self._current else values
