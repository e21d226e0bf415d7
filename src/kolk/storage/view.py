"""A view: a bucket's rows at one log offset, read from any place on, as often as one likes.

A view lives in memory and dies with the process. It is pinned under the tablet's lock, so its offset is exact: the rows
are those of the log up to it. Durable copies are *snapshots*, which are something else.

Who reads names the key after which he wants to read on; the view keeps no place for him. But it has one quick iterator
for one pass: whoever asks for just what that has next gets it from there, all others by a seek.
"""

import threading
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import pyarrow as pa

from kolk.codec.versions import RowCodecs
from kolk.errors import Closed, KolkError
from kolk.storage.kv import Pin


@dataclass(frozen=True, slots=True)
class Taken:
    """Stored values that come after a key; more than were asked for if they had been read already."""

    after: bytes
    all: pa.BinaryArray
    rows: int
    is_pass: bool

    @property
    def values(self) -> pa.BinaryArray:
        """Those that were asked for."""
        return self.all.slice(0, self.rows)


class View:
    """One bucket at one moment. Thread-safe: one lock, so that revoking waits for the rows that are being read."""

    def __init__(
        self,
        pin: Pin | None,
        offset: int,
        codec: RowCodecs,
        leader_epoch: int = 0,
        closed: Callable[[], None] | None = None,
    ) -> None:
        # Constant after construction.
        self.offset = offset
        self.codec = codec
        self.leader_epoch = leader_epoch
        self._closed = closed
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of a page
        # Guarded by _lock. The pass is after the key ``_passed``, with what was taken from it and not used; None while
        # somebody has taken from it and not said how far he came.
        self._pin = pin
        self._passed: bytes | None = b""
        self._ahead: pa.BinaryArray | None = None
        self._refusal: KolkError | None = None

    @classmethod
    def gone(cls, reason: KolkError, codec: RowCodecs) -> "View":
        """That of a bucket which went before its rows could be pinned: whoever reads it is told why."""
        view = cls(None, 0, codec)
        view._refusal = reason
        return view

    @property
    def is_open(self) -> bool:
        """Whether it still pins rows."""
        return self._pin is not None

    @property
    def refusal(self) -> KolkError | None:
        """Why the tablet has taken it back; None if it has not."""
        return self._refusal

    def is_empty(self) -> bool:
        """Whether it has no row."""
        with self._lock:
            return self._pinned().is_empty()

    def take(self, after: bytes, rows: int) -> Taken:
        """The stored values of the next rows after a key (empty: from the start on), at most so many; none at the end.

        Who took them says with ``used`` how far he came.
        """
        with self._lock:
            pin = self._pinned()
            if after != self._passed:
                return Taken(after, pin.take_after(after, rows), rows, is_pass=False)
            ahead, self._ahead, self._passed = self._ahead, None, None
            if ahead is None or len(ahead) < rows:
                more = pin.take(rows - (0 if ahead is None else len(ahead)))
                ahead = more if ahead is None or not len(ahead) else pa.concat_arrays([ahead, more])
            return Taken(after, ahead, rows, is_pass=True)

    def used(self, taken: Taken, count: int) -> bytes:
        """So many of the values are used, the others are not; the answer is the key after which to read on."""
        key = self._key_of(taken.all[count - 1].as_py()) if count else taken.after
        if taken.is_pass:
            with self._lock:
                self._passed, self._ahead = key, taken.all.slice(count)
        return key

    def has_more(self, after: bytes, rows: int) -> bool:
        """Whether a row comes after a key. The pass reads so many to find out, and keeps them for the next call."""
        with self._lock:
            pin = self._pinned()
            if after != self._passed:
                return len(pin.take_after(after, 1)) > 0
            ahead = self._ahead
            if ahead is None or not len(ahead):
                ahead = self._ahead = pin.take(rows)
            return len(ahead) > 0

    def abandon(self) -> None:
        """In a forked child: never tear down what belongs to the parent."""
        if self._pin is not None:
            self._pin.abandon()

    def close(self) -> None:
        """Let the rows go. Idempotent."""
        with self._lock:
            self._let_go()

    def revoke(self, reason: KolkError) -> None:
        """Close on the tablet's behalf; the next call of the reader is told why."""
        with self._lock:
            if self._pin is not None:
                self._refusal = reason
                self._let_go()

    def _pinned(self) -> Pin:
        pin = self._pin
        if pin is None:
            raise copy(self._refusal or Closed("this view is closed"))
        return pin

    def _let_go(self) -> None:
        pin, self._pin, self._ahead = self._pin, None, None
        if pin is not None:
            pin.close()
            if self._closed is not None:
                self._closed()

    def _key_of(self, value: bytes) -> bytes:
        schema = self.codec.schema
        row = self.codec.decode_one_as(schema, value, schema.primary_key)
        return self.codec.keys_of(schema).encode(row)[0].as_py()
