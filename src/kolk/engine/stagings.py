"""What is staged for transactions: who may add to it, how much there is, and when it goes.

A handle is open while rows come, then sealed, and then it waits for a commit. Neither may wait for ever: one to which
nothing is added for ten minutes goes, and one that nobody commits for a day. What a commit uses is pinned meanwhile,
and what a pending record names is never removed by anybody but the one who finishes it.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from kolk.codec.checksum import checksum_of
from kolk.config import EngineConfig
from kolk.errors import InvalidArgument, StagingGone, TooManyStagings
from kolk.model.schema import Column
from kolk.model.transaction import Seal, Staging
from kolk.runtime.clock import Clock
from kolk.storage.staging import StagingFiles, StagingWriter


@dataclass(slots=True)
class _Open:
    """A handle that rows are added to. ``lock`` is held by whoever adds."""

    writer: StagingWriter
    lock: threading.Lock
    used: float


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A handle that waits for its commit."""

    staging: Staging
    seal: Seal
    since: float


class Stagings:
    """Handles. Thread-safe: one lock, which is not held while rows are written."""

    def __init__(self, files: StagingFiles, config: EngineConfig, clock: Clock, named: Collection[str]) -> None:
        self._files = files
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: dict[str, _Open] = {}
        self._sealed: dict[str, _Sealed] = {}
        self._pinned: set[str] = set()
        now = clock.monotonic()
        for handle in files.handles():
            found = files.sealed(handle)
            if found is not None:
                # A restart gives what waits its time anew: nobody could commit it meanwhile.
                self._sealed[handle] = _Sealed(*found, since=now)
            elif handle not in named:
                files.remove(handle)

    def append(self, staging: Staging, rows: pa.RecordBatch, columns: Sequence[Column]) -> None:
        """Stage rows under a handle, which begins with its first ones."""
        entry = self._entered(staging)
        with entry.lock:
            self._check_room(staging.app, rows.nbytes)
            try:
                entry.writer.append(rows, checksum_of(rows, columns))
            except BaseException:
                # Part of it may be in the file: who comes back begins anew, under another handle.
                self._forget([staging.handle])
                raise

    def seal(self, staging: Staging) -> Seal:
        """Make what was staged under a handle durable. Once more, it answers the same."""
        with self._lock:
            found = self._sealed.get(staging.handle)
        if found is not None:
            if found.staging != staging:
                raise InvalidArgument(f"the handle {staging.handle} stands for something else; take a new one")
            return found.seal
        entry = self._entered(staging)
        with entry.lock:
            try:
                seal = entry.writer.seal()
            except BaseException:
                self._forget([staging.handle])
                raise
            with self._lock:
                self._open.pop(staging.handle, None)
                self._sealed[staging.handle] = _Sealed(staging, seal, self._clock.monotonic())
            return seal

    @contextmanager
    def pinned(self, handles: Sequence[str]) -> Iterator[list[tuple[Staging, Seal]]]:
        """What these handles stand for, kept for as long as the block lasts; StagingGone if one is not sealed."""
        with self._lock:
            missing = [handle for handle in handles if handle not in self._sealed]
            if missing:
                state = "is not sealed" if missing[0] in self._open else "is not there (any more)"
                raise StagingGone(f"what was staged under {missing[0]} {state}; stage the rows again and seal them")
            found = [(self._sealed[handle].staging, self._sealed[handle].seal) for handle in handles]
            self._pinned.update(handles)
        try:
            yield found
        finally:
            with self._lock:
                self._pinned.difference_update(handles)

    def batches(self, handle: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a sealed handle."""
        return self._files.batches(handle, schema)

    def sealed(self, handle: str) -> Staging | None:
        """What a sealed handle stands for."""
        with self._lock:
            found = self._sealed.get(handle)
            return None if found is None else found.staging

    def discard(self, handles: Iterable[str], named: Collection[str] = ()) -> None:
        """Forget handles, but those that a record names and those that are in use."""
        with self._lock:
            going = [handle for handle in handles if handle not in named and handle not in self._pinned]
        self._forget(going)

    def of(self, app: str, tables: Collection[int], version: int) -> list[str]:
        """The handles of an application for these tables, of this version and those before it."""
        with self._lock:
            every = [entry.writer.staging for entry in self._open.values()]
            every += [entry.staging for entry in self._sealed.values()]
        return [
            staging.handle
            for staging in every
            if staging.app == app and staging.table in tables and staging.version <= version
        ]

    def reap(self, named: Collection[str]) -> None:
        """Forget what waits for too long."""
        now = self._clock.monotonic()
        with self._lock:
            going = [h for h, e in self._open.items() if now - e.used > self._config.txn_open_ttl_seconds]
            going += [h for h, e in self._sealed.items() if now - e.since > self._config.txn_staging_ttl_seconds]
        self.discard(going, named)

    def listed(self) -> list[tuple[Staging, Seal, bool]]:
        """What is staged, and whether it is sealed."""
        with self._lock:
            found = [(entry.writer.staging, entry.writer.seal_so_far, False) for entry in self._open.values()]
            return found + [(entry.staging, entry.seal, True) for entry in self._sealed.values()]

    @property
    def bytes(self) -> int:
        """How much is staged."""
        return sum(seal.bytes for _, seal, _ in self.listed())

    def close(self) -> None:
        """Let the files go; what is sealed stays."""
        with self._lock:
            writers = [entry.writer for entry in self._open.values()]
            self._open.clear()
        for writer in writers:
            writer.close()

    def _entered(self, staging: Staging) -> _Open:
        with self._lock:
            if staging.handle in self._sealed:
                raise InvalidArgument(f"the handle {staging.handle} is sealed; nothing can be added to it")
            entry = self._open.get(staging.handle)
            if entry is None:
                entry = _Open(self._files.create(staging), threading.Lock(), 0.0)
                self._open[staging.handle] = entry
            if entry.writer.staging != staging:
                raise InvalidArgument(f"the handle {staging.handle} stands for something else; take a new one")
            entry.used = self._clock.monotonic()
            return entry

    def _check_room(self, app: str, more: int) -> None:
        listed = self.listed()
        total = sum(seal.bytes for _, seal, _ in listed)
        own = sum(seal.bytes for staging, seal, _ in listed if staging.app == app)
        if total + more > self._config.txn_staging_bytes_max or own + more > self._config.txn_app_bytes_max:
            raise TooManyStagings(
                f"{total:,} bytes are staged, {own:,} of them by {app!r}; the limits are"
                f" {self._config.txn_staging_bytes_max:,} and {self._config.txn_app_bytes_max:,}; commit some first"
            )

    def _forget(self, handles: Iterable[str]) -> None:
        for handle in handles:
            with self._lock:
                entry = self._open.pop(handle, None)
                self._sealed.pop(handle, None)
            if entry is not None:
                entry.writer.close()
            with suppress(OSError):  # the next start removes what is left
                self._files.remove(handle)
