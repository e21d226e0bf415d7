"""What is stored under the keys of a pass: read once, then kept up to date as its puts are merged."""

from collections.abc import Sequence
from itertools import repeat

import pyarrow as pa

from kolk.codec.row import stored_values
from kolk.merge.changes import KvWrites
from kolk.merge.prepared import Prepared
from kolk.storage.kv import Kv


class Stored:
    """The old rows of one pass. Guarded by the tablet's lock."""

    def __init__(self, kv: Kv, puts: Sequence[Prepared], *, is_empty: bool = False) -> None:
        """What the KV has, or nothing, for puts that come after everything was removed."""
        self._single: list[bytes | None] | None = None
        self._current: dict[bytes, bytes | None] = {}
        seeing = [put for put in puts if not put.blind]
        if len(puts) == 1 and seeing:
            keys = list(seeing[0].keys)
            self._single = list(repeat(None, len(keys))) if is_empty else kv.get(keys)
        elif seeing:
            keys = sorted(set[bytes]().union(*(put.keys for put in seeing)))
            self._current = dict.fromkeys(keys) if is_empty else dict(zip(keys, kv.get(keys), strict=True))

    def olds(self, put: Prepared) -> pa.BinaryArray:
        """What is stored under each of the put's keys, null for nothing."""
        if put.blind:
            return pa.array([], pa.binary())
        return stored_values(self._single if self._single is not None else [self._current[key] for key in put.keys])

    def overlay(self, writes: KvWrites) -> None:
        """Let the later puts of the pass see this one."""
        if self._single is None:
            self._current.update(zip(writes.keys, writes.values, strict=True))
            self._current.update(zip(writes.deletes, repeat(None)))
