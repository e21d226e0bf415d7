"""What is staged for transactions: who may add to it, how much there is, and when it goes.

A handle is open while rows come, then sealed, and then it waits for a commit. Neither may wait for ever: one to which
nothing is added for ten minutes goes, and one that nobody commits for a day. What a commit uses is pinned meanwhile,
and what a pending record names is never removed by anybody but the one who finishes it.

Batches of a handle are numbered. A number that was staged is answered and not staged again, because the answer may have
been lost; one that does not follow is refused, because what was before it is gone: a restart forgets what was not
sealed, and rows must not go missing without anybody noticing.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from kolk.codec.checksum import checksum_of
from kolk.config import EngineConfig
from kolk.errors import InvalidArgument, StagingGone, Stopped, TooManyStagings
from kolk.model.schema import Column
from kolk.model.transaction import Seal, Staging
from kolk.runtime.clock import Clock
from kolk.storage.staging import StagingFiles, StagingWriter


@dataclass(slots=True, eq=False)
class _Open:
    """A handle that rows are added to. ``lock`` is held by whoever adds, seals or closes; it guards the rest."""

    writer: StagingWriter
    lock: threading.Lock
    used: float
    batches: int = 0
    size: int = 0
    """What was taken of the room that there is."""
    is_closed: bool = False

    def close(self) -> None:
        """Let the file go. Hold the lock: a file that somebody writes to must not be closed under him."""
        self.is_closed = True
        self.writer.close()


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A handle that waits for its commit."""

    staging: Staging
    seal: Seal
    since: float
    size: int


class Stagings:
    """Handles. Thread-safe: one lock, which is not held while rows are written; that of a handle is taken before it."""

    def __init__(self, files: StagingFiles, config: EngineConfig, clock: Clock, named: Collection[str]) -> None:
        self._files = files
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: dict[str, _Open] = {}
        self._sealed: dict[str, _Sealed] = {}
        self._pinned: set[str] = set()
        self._sizes: Counter[str] = Counter()
        now = clock.monotonic()
        for handle in files.handles():
            found = files.sealed(handle)
            if found is not None:
                # A restart gives what waits its time anew: nobody could commit it meanwhile.
                self._sealed[handle] = _Sealed(*found, since=now, size=found[1].bytes)
                self._sizes[found[0].app] += found[1].bytes
            elif handle not in named:
                files.remove(handle)

    def append(self, staging: Staging, number: int, rows: pa.RecordBatch, columns: Sequence[Column]) -> None:
        """Stage a batch under a handle, which begins with number 0. Once more, it does nothing."""
        entry = self._begun(staging) if number == 0 else self._found(staging)
        with entry.lock:
            self._check(entry, staging)
            if number < entry.batches:
                return
            if number > entry.batches:
                raise _gone(staging.handle, f"has {entry.batches:,} batches, and number {number:,} does not follow")
            self._take(entry, rows.nbytes)
            try:
                entry.writer.append(rows, checksum_of(rows, columns))
            except BaseException as error:
                if entry.writer.is_broken:
                    self._dropped(staging.handle, entry)
                else:
                    self._give_back(entry, rows.nbytes)
                if isinstance(error, OSError):
                    raise Stopped(f"the rows could not be staged: {error}") from error
                raise
            entry.batches += 1

    def seal(self, staging: Staging, batches: int) -> Seal:
        """Make the batches of a handle durable: all of them, for which their number is asked. Once more, it answers
        the same."""
        with self._lock:
            found = self._sealed.get(staging.handle)
        if found is not None:
            _check_same(found.staging, staging)
            return found.seal
        entry = self._found(staging)
        with entry.lock:
            if staging.handle in self._sealed:
                return self.seal(staging, batches)  # by somebody else, meanwhile
            self._check(entry, staging)
            if entry.batches != batches:
                raise _gone(staging.handle, f"has {entry.batches:,} batches, not {batches:,}")
            try:
                seal = entry.writer.seal()
            except BaseException as error:
                self._dropped(staging.handle, entry)
                if isinstance(error, OSError):
                    raise Stopped(f"what was staged could not be made durable: {error}") from error
                raise
            entry.is_closed = True
            with self._lock:
                self._open.pop(staging.handle, None)
                self._sealed[staging.handle] = _Sealed(staging, seal, self._clock.monotonic(), entry.size)
            return seal

    @contextmanager
    def pinned(self, handles: Sequence[str]) -> Iterator[list[tuple[Staging, Seal]]]:
        """What these handles stand for, kept for as long as the block lasts; StagingGone if one is not sealed."""
        with self._lock:
            missing = [handle for handle in handles if handle not in self._sealed]
            if missing:
                raise _gone(missing[0], "is not sealed" if missing[0] in self._open else "is not there (any more)")
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

    def staged(self, handles: Iterable[str] | None = None) -> list[Staging]:
        """What these handles stand for, or all, sealed or not; without those that are not there."""
        with self._lock:
            every = {handle: entry.writer.staging for handle, entry in self._open.items()}
            every |= {handle: entry.staging for handle, entry in self._sealed.items()}
        return list(every.values()) if handles is None else [every[handle] for handle in handles if handle in every]

    def discard(self, handles: Iterable[str], named: Collection[str] = ()) -> int:
        """Forget handles, but those that a record names and those that are in use; the answer is how many there
        were."""
        with self._lock:
            going = [handle for handle in handles if handle not in named and handle not in self._pinned]
            count = sum(handle in self._open or handle in self._sealed for handle in going)
        for handle in going:
            self._forget(handle)
        return count

    def of(self, app: str, tables: Collection[int], version: int) -> list[str]:
        """The handles of an application for these tables, of this version and those before it."""
        return [
            staging.handle
            for staging in self.staged()
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
    def count(self) -> int:
        """How many handles there are."""
        return len(self._open) + len(self._sealed)

    @property
    def bytes(self) -> int:
        """How much is staged."""
        with self._lock:
            return self._sizes.total()

    def size_of(self, handles: Iterable[str]) -> int:
        """How much is staged under these, as far as they are sealed."""
        with self._lock:
            return sum(self._sealed[handle].seal.bytes for handle in handles if handle in self._sealed)

    def close(self) -> None:
        """Let the files go; what is sealed stays."""
        with self._lock:
            entries = list(self._open.values())
            self._open.clear()
        for entry in entries:
            with entry.lock:
                entry.close()

    # --- inside

    def _begun(self, staging: Staging) -> _Open:
        """The handle to which the first batch goes."""
        with self._lock:
            if staging.handle not in self._open and staging.handle not in self._sealed:
                self._check_places()
                try:
                    writer = self._files.create(staging)
                except OSError as error:
                    raise Stopped(f"nothing can be staged: {error}") from error
                self._open[staging.handle] = _Open(writer, threading.Lock(), 0.0)
        return self._found(staging)

    def _found(self, staging: Staging) -> _Open:
        with self._lock:
            if staging.handle in self._sealed:
                raise InvalidArgument(f"the handle {staging.handle} is sealed; nothing can be added to it")
            entry = self._open.get(staging.handle)
            if entry is None:
                raise _gone(staging.handle, "is not there (any more)")
            _check_same(entry.writer.staging, staging)
            entry.used = self._clock.monotonic()
            return entry

    def _check(self, entry: _Open, staging: Staging) -> None:
        """Whether it was sealed or discarded while the caller waited for its lock."""
        if entry.is_closed:
            self._found(staging)
            raise _gone(staging.handle, "was discarded")

    def _check_places(self) -> None:
        """An open handle is an open file, and a sealed one is a file."""
        if len(self._open) >= self._config.txn_open_max:
            raise TooManyStagings(
                f"rows are being staged under {len(self._open):,} handles, as many as may be (txn_open_max); seal some"
            )
        if len(self._open) + len(self._sealed) >= self._config.txn_handles_max:
            raise TooManyStagings(
                f"{len(self._open) + len(self._sealed):,} handles wait for a commit, as many as may be"
                " (txn_handles_max); commit or discard some"
            )

    def _take(self, entry: _Open, size: int) -> None:
        app = entry.writer.staging.app
        with self._lock:
            total, own = self._sizes.total(), self._sizes[app]
            if total + size > self._config.txn_staging_bytes_max or own + size > self._config.txn_app_bytes_max:
                raise TooManyStagings(
                    f"{total:,} bytes are staged, {own:,} of them by {app!r}; the limits are"
                    f" {self._config.txn_staging_bytes_max:,} (txn_staging_bytes_max) and"
                    f" {self._config.txn_app_bytes_max:,} (txn_app_bytes_max); commit or discard some first"
                )
            self._sizes[app] += size
            entry.size += size

    def _give_back(self, entry: _Open, size: int) -> None:
        with self._lock:
            entry.size -= size
            self._free(entry.writer.staging.app, size)

    def _free(self, app: str, size: int) -> None:
        self._sizes[app] -= size
        if self._sizes[app] <= 0:
            del self._sizes[app]

    def _forget(self, handle: str) -> None:
        with self._lock:
            entry = self._open.get(handle)
            found = self._sealed.pop(handle, None)
            if found is not None:
                self._free(found.staging.app, found.size)
        if entry is not None:
            with entry.lock:
                if not entry.is_closed:
                    return self._dropped(handle, entry)
            return self._forget(handle)  # it was sealed, or discarded, meanwhile
        self._remove(handle)

    def _dropped(self, handle: str, entry: _Open) -> None:
        """Let an open handle go. Its lock is held."""
        entry.close()
        self._remove(handle)
        with self._lock:
            if self._open.get(handle) is entry:
                del self._open[handle]
            self._free(entry.writer.staging.app, entry.size)

    def _remove(self, handle: str) -> None:
        with suppress(OSError):  # the next start removes what is left
            self._files.remove(handle)


def _check_same(known: Staging, staging: Staging) -> None:
    if known != staging:
        raise InvalidArgument(f"the handle {staging.handle} stands for something else; take a new one")


def _gone(handle: str, why: str) -> StagingGone:
    return StagingGone(f"what was staged under {handle} {why}; stage the rows again, under a new handle")
