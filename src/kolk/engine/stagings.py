"""What is staged for transactions: who may add to it, how much there is, and when it goes.

A handle is open while rows come, then sealed, and then it waits for a commit. Neither may wait for ever: one to which
nothing is added for ten minutes goes, and one that nobody commits for a day. What a commit uses is pinned meanwhile,
and what a pending record names is never removed by anybody but the one who finishes it.

A handle that is gone never begins anew, or else it would be sealed with a part of its rows: whoever comes back to it is
told. What the process before had open is gone too, and that it cannot know; so a client compares the seal with what it
has staged.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from kolk.codec.checksum import checksum_of
from kolk.config import EngineConfig
from kolk.errors import InvalidArgument, StagingGone, Stopped, TooManyStagings
from kolk.model.schema import Column
from kolk.model.transaction import Seal, Staging
from kolk.runtime.clock import Clock
from kolk.storage.staging import StagingFiles, StagingWriter

_GONE_MAX = 100_000
"""So many handles that are gone are remembered."""


@dataclass(slots=True)
class _Open:
    """A handle that rows are added to. ``lock`` is held by whoever adds, and whoever removes it; it comes before that
    of ``Stagings``."""

    writer: StagingWriter
    used: float
    is_gone: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A handle that waits for its commit."""

    staging: Staging
    seal: Seal
    since: float


class Stagings:
    """Handles. Thread-safe: one lock, which is not held while rows are written; the one of ``named`` comes after it."""

    def __init__(
        self, files: StagingFiles, config: EngineConfig, clock: Clock, named: Callable[[], Collection[str]]
    ) -> None:
        """``named`` says which handles the records of unfinished commits name."""
        self._files = files
        self._config = config
        self._clock = clock
        self._named = named
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: dict[str, _Open] = {}
        self._sealed: dict[str, _Sealed] = {}
        self._gone: dict[str, None] = {}
        self._pins: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        now, kept = clock.monotonic(), named()
        for handle in files.handles():
            found = files.sealed(handle)
            if found is not None:
                # A restart gives what waits its time anew: nobody could commit it meanwhile.
                self._sealed[handle] = _Sealed(*found, since=now)
                self._bytes[found[0].app] += found[1].bytes
            elif handle not in kept:
                files.remove(handle)

    def append(self, staging: Staging, rows: pa.RecordBatch, columns: Sequence[Column]) -> None:
        """Stage rows under a handle, which begins with its first ones."""
        checksum = checksum_of(rows, columns)
        with self._adding(staging, begins=True) as entry:
            self._check_room(staging.app, rows.nbytes)
            # Part of it may be in the file if that fails: who comes back begins anew, under another handle.
            with self._forgetting(staging.handle):
                before = entry.writer.seal_so_far.bytes
                entry.writer.append(rows, checksum)
                with self._lock:
                    self._bytes[staging.app] += entry.writer.seal_so_far.bytes - before

    def seal(self, staging: Staging) -> Seal:
        """Make what was staged under a handle durable. Once more, it answers the same."""
        with self._lock:
            found = self._sealed.get(staging.handle)
        if found is not None:
            if found.staging != staging:
                raise _taken(staging.handle)
            return found.seal
        with self._adding(staging, begins=False) as entry, self._forgetting(staging.handle):
            seal = entry.writer.seal()
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
            self._pins.update(handles)
        try:
            yield found
        finally:
            with self._lock:
                self._pins.subtract(handles)
                self._pins += Counter()  # those that nobody pins any more go

    def batches(self, handle: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a sealed handle."""
        return self._files.batches(handle, schema)

    def sealed(self, handle: str) -> Staging | None:
        """What a sealed handle stands for."""
        with self._lock:
            found = self._sealed.get(handle)
            return None if found is None else found.staging

    def discard(self, handles: Iterable[str], is_meant: Callable[[Staging], bool] = lambda _: True) -> None:
        """Forget those of the handles that are meant, but never what a record names and what is in use."""
        self._forget(handles, is_meant, is_forced=False)

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

    def reap(self) -> None:
        """Forget what waits for too long."""
        now = self._clock.monotonic()
        with self._lock:
            going = [h for h, e in self._open.items() if now - e.used > self._config.txn_open_ttl_seconds]
            going += [h for h, e in self._sealed.items() if now - e.since > self._config.txn_staging_ttl_seconds]
        if going:
            self.discard(going)

    def listed(self) -> list[tuple[Staging, Seal, bool]]:
        """What is staged, and whether it is sealed."""
        with self._lock:
            found = [(entry.writer.staging, entry.writer.seal_so_far, False) for entry in self._open.values()]
            return found + [(entry.staging, entry.seal, True) for entry in self._sealed.values()]

    @property
    def bytes(self) -> int:
        """How much is staged."""
        with self._lock:
            return self._bytes.total()

    def close(self) -> None:
        """Let the files go; what is sealed stays."""
        with self._lock:
            entries = list(self._open.values())
            self._open.clear()
        for entry in entries:
            with entry.lock:
                entry.is_gone = True
                entry.writer.close()

    @contextmanager
    def _adding(self, staging: Staging, *, begins: bool) -> Iterator[_Open]:
        """The handle that rows are added to, nobody else's within the block."""
        handle = staging.handle
        with self._lock:
            if handle in self._sealed:
                raise InvalidArgument(f"the handle {handle} is sealed; nothing can be added to it")
            entry = self._open.get(handle)
            if entry is None:
                if handle in self._gone or not begins:
                    raise _not_there(handle)
                with _typed(handle):
                    entry = _Open(self._files.create(staging), 0.0)
                self._open[handle] = entry
            if entry.writer.staging != staging:
                raise _taken(handle)
            entry.used = self._clock.monotonic()
        with entry.lock:
            if entry.is_gone:
                raise _not_there(handle)
            yield entry

    @contextmanager
    def _forgetting(self, handle: str) -> Iterator[None]:
        """A handle that fails here is gone."""
        try:
            with _typed(handle):
                yield
        except BaseException:
            self._forget([handle], lambda _: True, is_forced=True)
            raise

    def _check_room(self, app: str, more: int) -> None:
        with self._lock:
            total, own = self._bytes.total(), self._bytes[app]
        if total + more > self._config.txn_staging_bytes_max or own + more > self._config.txn_app_bytes_max:
            raise TooManyStagings(
                f"{total:,} bytes are staged, {own:,} of them by {app!r}; the limits are"
                f" {self._config.txn_staging_bytes_max:,} and {self._config.txn_app_bytes_max:,}; commit some first"
            )

    def _forget(self, handles: Iterable[str], is_meant: Callable[[Staging], bool], *, is_forced: bool) -> None:
        """Take handles out in one step with the look whether they may go, and then remove their files."""
        opened: list[_Open] = []
        going: list[str] = []
        with self._lock:
            # After the look at the pins: who pins lets go only once a record that names it can be seen.
            free = [handle for handle in handles if is_forced or handle not in self._pins]
            named = () if is_forced or not free else self._named()
            for handle in free:
                entry, sealed = self._open.get(handle), self._sealed.get(handle)
                staging = entry.writer.staging if entry is not None else None if sealed is None else sealed.staging
                if staging is None or handle in named or not is_meant(staging):
                    continue
                seal = entry.writer.seal_so_far if entry is not None else sealed.seal if sealed is not None else None
                self._bytes[staging.app] -= 0 if seal is None else seal.bytes
                self._bytes += Counter()
                self._open.pop(handle, None)
                self._sealed.pop(handle, None)
                self._gone[handle] = None
                opened += [] if entry is None else [entry]
                going.append(handle)
            for handle in list(self._gone)[: max(len(self._gone) - _GONE_MAX, 0)]:
                del self._gone[handle]
        for entry in opened:
            with entry.lock:
                entry.is_gone = True
                entry.writer.close()
        for handle in going:
            with suppress(OSError):  # the next start removes what is left
                self._files.remove(handle)


@contextmanager
def _typed(handle: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Stopped(
            f"nothing more can be staged under {handle}: {error}; begin anew, under another handle"
        ) from error


def _taken(handle: str) -> InvalidArgument:
    return InvalidArgument(f"the handle {handle} stands for something else; take a new one")


def _not_there(handle: str) -> StagingGone:
    return StagingGone(f"what was staged under {handle} is not there (any more); stage the rows again, all of them")
