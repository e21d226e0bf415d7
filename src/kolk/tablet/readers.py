"""Who reads a bucket now, and what one read may bring.

Reads take no lock; they only count themselves, because RocksDB must not be closed under one.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

from kolk.errors import TooLarge
from kolk.storage.kv import Kv

_WAIT_SECONDS = 0.005
_WAITS_MAX = 2_000
_GET_KEYS_MIN, _GET_KEYS_MAX = 64, 16_384
_GET_BYTES = 16 * 2**20
"""About how much one piece of a lookup brings; most lookups are one piece."""
READ_BYTES_MAX = 256 * 2**20
"""The most that one lookup brings: a few bytes of keys may stand for gigabytes of rows."""


class Readers:
    """Counts reads. Thread-safe: its lock is only held for a moment."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._mutex = threading.RLock()  # a signal handler may close the database in the middle of anything
        # Guarded by _mutex: the threads of the reads under way, each by a token.
        self._threads: dict[object, int] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Serve a read, if anything is served; closing waits for it."""
        token = object()
        try:
            with self._mutex:
                self._check()
                self._threads[token] = threading.get_ident()
            yield
        finally:
            with self._mutex:
                self._threads.pop(token, None)

    def wait(self) -> None:
        """Wait for the reads of other threads. Not for ever: an interrupt may have kept one from signing off."""
        for _ in range(_WAITS_MAX):
            alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
            with self._mutex:
                if alive.isdisjoint(self._threads.values()):
                    return
            threading.Event().wait(_WAIT_SECONDS)


def values_of(kv: Kv, keys: Sequence[bytes], *, taken: int = 0, bytes_max: int | None = None) -> list[bytes | None]:
    """The stored values under these keys; TooLarge, before much is read, if they are too large together, and with what
    was ``taken`` before: larger than a lookup may be, or than ``bytes_max``."""
    most = READ_BYTES_MAX if bytes_max is None else bytes_max
    found: list[bytes | None] = []
    size, count = 0, _GET_KEYS_MIN
    while len(found) < len(keys):
        piece = kv.get(list(keys[len(found) : len(found) + count]))
        found += piece
        size += size_of(piece)
        _check_read(taken + size, most)
        count = min(max(_GET_BYTES * len(found) // (size + 1), _GET_KEYS_MIN), _GET_KEYS_MAX)
    return found


def size_of(values: Iterable[bytes | None]) -> int:
    """How many bytes stored values take together."""
    return sum(map(len, filter(None, values)))


def values_between(kv: Kv, start: bytes, end: bytes) -> list[bytes]:
    """The stored values of a range of keys, in key order; TooLarge if they are too large together."""
    found: list[bytes] = []
    size = 0
    with closing(kv.between(start, end)) as values:
        for value in values:
            found.append(value)
            size += len(value)
            _check_read(size, READ_BYTES_MAX)
    return found


def _check_read(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise TooLarge(f"the rows take more than {bytes_max:,} bytes together; ask for fewer at once, or scan")
