"""What is staged for transactions: who may add to it, how much there is, and when it goes.

A handle is open while rows come, then sealed, and then it waits for a commit. Neither may wait for ever: one of which
nothing is heard for ten minutes goes, and one that nobody commits for a day. What a commit uses is pinned meanwhile,
and what a pending record names is never removed by anybody but the one who finishes it.

Batches of a handle are numbered. A number that was staged is answered and not staged again, because the answer may have
been lost; one that does not follow is refused, because what was before it is gone: a restart forgets what was not
sealed, and rows must not go missing without anybody noticing. For the same reason a handle that is gone never begins
anew: whoever comes back to it is told.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from kolk.codec.checksum import checksum_of
from kolk.config import EngineConfig
from kolk.errors import Closed, InvalidArgument, StagingGone, Stopped, TooLarge, TooManyStagings
from kolk.model.schema import Column
from kolk.model.transaction import Seal, Staging
from kolk.runtime.clock import Clock
from kolk.storage.staging import StagingFiles, StagingWriter

_GONE_MAX = 100_000
"""So many handles that are gone are remembered."""


@dataclass(slots=True, eq=False)
class _Open:
    """A handle that rows are added to. ``lock`` is held by whoever adds, seals or closes, and comes before that of
    ``Stagings``, which guards ``used``, ``size`` and ``is_gone``; the rest is guarded by it."""

    writer: StagingWriter
    used: float = 0.0
    size: int = 0
    """What was taken of the room that there is."""
    is_gone: bool = False
    """Whether it was sealed, or is not there any more."""
    batches: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A handle that waits for its commit."""

    staging: Staging
    seal: Seal
    since: float
    size: int


class Stagings:
    """Handles. Thread-safe: one lock, which is not held while rows are written; that of a handle is taken before it,
    the one of ``named`` after it."""

    def __init__(
        self, files: StagingFiles, config: EngineConfig, clock: Clock, named: Callable[[], Collection[str]]
    ) -> None:
        """``named`` says which handles the records of unfinished commits name."""
        self._files = files
        self._config = config
        self._clock = clock
        self._named = named
        self._lock = threading.RLock()  # a signal handler may close the database in the middle of anything
        # Guarded by _lock.
        self._open: dict[str, _Open] = {}
        self._sealed: dict[str, _Sealed] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._pins: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()
        self._is_closed = False
        now, kept = clock.monotonic(), named()
        for handle in files.handles():
            found = files.sealed(handle)
            if found is not None:
                # A restart gives what waits its time anew: nobody could commit it meanwhile.
                self._sealed[handle] = _Sealed(*found, since=now, size=found[1].bytes)
                self._sizes[found[0].app] += found[1].bytes
            elif handle not in kept:
                files.remove(handle)

    def append(self, staging: Staging, number: int, rows: pa.RecordBatch, columns: Sequence[Column]) -> None:
        """Stage a batch under a handle, which begins with number 0. Once more, it does nothing."""
        with self._held(staging, begins=number == 0) as entry:
            if isinstance(entry, _Sealed):
                raise InvalidArgument(f"the handle {staging.handle} is sealed; nothing can be added to it")
            if number < entry.batches:
                return
            if number > entry.batches:
                raise _gone(staging.handle, f"has {entry.batches:,} batches, and number {number:,} does not follow")
            checksum, before = checksum_of(rows, columns), entry.writer.seal_so_far.bytes
            self._take(entry, rows.nbytes)
            try:
                with self._typed("the rows could not be staged"):
                    entry.writer.append(rows, checksum)
            except BaseException:
                if entry.writer.is_broken:
                    self._forget([staging.handle], is_forced=True)
                else:
                    self._give_back(entry, rows.nbytes)
                raise
            # What it takes in the file was not known before; a restart counts that.
            self._give_back(entry, rows.nbytes - (entry.writer.seal_so_far.bytes - before))
            entry.batches += 1

    def keep(self, staging: Staging) -> None:
        """Begin the time of a handle anew: whoever adds to it is there, and slow. StagingGone if it went."""
        self._look(staging)

    def seal(self, staging: Staging, batches: int) -> Seal:
        """Make the batches of a handle durable: all of them, for which their number is asked. Once more, it answers
        the same."""
        with self._held(staging) as entry:
            if isinstance(entry, _Sealed):
                return entry.seal
            if entry.batches != batches:
                raise _gone(staging.handle, f"has {entry.batches:,} batches, not {batches:,}")
            try:
                with self._typed("what was staged could not be made durable"):
                    seal = entry.writer.seal()
            except BaseException:
                self._forget([staging.handle], is_forced=True)
                raise
            with self._lock:
                self._check_there(entry)
                entry.is_gone = True
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

    def staged(self, handles: Iterable[str] | None = None) -> list[Staging]:
        """What these handles stand for, or all, sealed or not; without those that are not there."""
        with self._lock:
            every = {handle: entry.writer.staging for handle, entry in list(self._open.items())}
            every |= {handle: entry.staging for handle, entry in self._sealed.items()}
        return list(every.values()) if handles is None else [every[handle] for handle in handles if handle in every]

    def discard(self, handles: Iterable[str], is_meant: Callable[[Staging], bool] = lambda _: True) -> int:
        """Forget those of the handles that are meant, but never what a record names and what is in use; the answer is
        how many went."""
        return self._forget(handles, is_meant)

    def of(self, app: str, tables: Collection[int], version: int) -> list[str]:
        """The handles of an application for these tables, of this version and those before it."""
        return [
            staging.handle
            for staging in self.staged()
            if staging.app == app and staging.table in tables and staging.version <= version
        ]

    def reap(self) -> None:
        """Forget what waits for too long."""
        now = self._clock.monotonic()
        with self._lock:
            going = [h for h, e in list(self._open.items()) if now - e.used > self._config.txn_open_ttl_seconds]
            going += [h for h, e in self._sealed.items() if now - e.since > self._config.txn_staging_ttl_seconds]
        if going:
            self.discard(going)

    def listed(self) -> list[tuple[Staging, Seal, bool]]:
        """What is staged, and whether it is sealed."""
        with self._lock:
            entries = list(self._open.values())
            found = [(entry.writer.staging, entry.writer.seal_so_far, False) for entry in entries]
            return found + [(entry.staging, entry.seal, True) for entry in self._sealed.values()]

    @property
    def count(self) -> int:
        """How many handles there are."""
        with self._lock:
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
            self._is_closed = True
            entries = list(self._open.values())
            self._open.clear()
            for entry in entries:
                entry.is_gone = True
        for entry in entries:
            with entry.lock:
                entry.writer.close()

    # --- inside

    @contextmanager
    def _held(self, staging: Staging, *, begins: bool = False) -> Iterator[_Open | _Sealed]:
        """A handle, nobody else's within the block if it is open. StagingGone if it is not there; else it begins."""
        found = self._look(staging, begins=begins)
        if isinstance(found, _Sealed):
            yield found
            return
        with found.lock:
            # It may have been sealed or discarded while the caller waited for its lock.
            again = self._look(staging)
            if isinstance(again, _Open) and again is not found:
                raise _gone(staging.handle, "was discarded")
            yield again

    def _look(self, staging: Staging, *, begins: bool = False) -> _Open | _Sealed:
        handle = staging.handle
        with self._lock:
            self._check_open()
            entry: _Open | _Sealed | None = self._sealed.get(handle) or self._open.get(handle)
            if entry is None:
                if handle in self._gone or not begins:
                    raise _gone(handle, "is not there (any more)")
                self._check_places()
                with self._typed("nothing can be staged"):
                    entry = self._open[handle] = _Open(self._files.create(staging))
                if self._is_closed:  # by a signal handler, before there was this one to close
                    self.close()
                    self._check_open()
            if (entry.staging if isinstance(entry, _Sealed) else entry.writer.staging) != staging:
                raise InvalidArgument(f"the handle {handle} stands for something else; take a new one")
            if isinstance(entry, _Open):
                entry.used = self._clock.monotonic()
            return entry

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
            self._check_there(entry)
            total, own = self._sizes.total(), self._sizes[app]
            if total + size > self._config.txn_staging_bytes_max or own + size > self._config.txn_app_bytes_max:
                raise TooManyStagings(
                    f"{total:,} bytes are staged, {own:,} of them by {app!r}; the limits are"
                    f" {self._config.txn_staging_bytes_max:,} (txn_staging_bytes_max) and"
                    f" {self._config.txn_app_bytes_max:,} (txn_app_bytes_max); commit or discard some first"
                )
            if entry.size > self._config.txn_bytes_max:
                raise TooLarge(
                    f"{entry.size:,} bytes are staged under one handle, and at most {self._config.txn_bytes_max:,} are"
                    " merged in one transaction (txn_bytes_max), so it could not be committed; commit it in pieces,"
                    " each with a greater version"
                )
            self._sizes[app] += size
            entry.size += size

    def _give_back(self, entry: _Open, size: int) -> None:
        with self._lock:
            if not entry.is_gone:  # else all of it was given back
                entry.size -= size
                self._free(entry.writer.staging.app, size)

    def _free(self, app: str, size: int) -> None:
        self._sizes[app] -= size
        if self._sizes[app] <= 0:
            del self._sizes[app]

    def _forget(
        self, handles: Iterable[str], is_meant: Callable[[Staging], bool] = lambda _: True, *, is_forced: bool = False
    ) -> int:
        """Take handles out in one step with the look whether they may go, and then remove their files."""
        opened: list[_Open] = []
        with self._lock:
            # After the look at the pins: who pins lets go only once a record that names it can be seen.
            free = [handle for handle in handles if is_forced or handle not in self._pins]
            named = () if is_forced or not free else self._named()
            going = [one for one in dict.fromkeys(free) if one not in named and self._is_there(one, is_meant)]
            for handle in going:
                entry, sealed = self._open.pop(handle, None), self._sealed.pop(handle, None)
                if entry is not None:
                    entry.is_gone = True
                    self._free(entry.writer.staging.app, entry.size)
                    opened.append(entry)
                if sealed is not None:
                    self._free(sealed.staging.app, sealed.size)
                self._gone[handle] = None
            while len(self._gone) > _GONE_MAX:
                self._gone.popitem(last=False)
        for entry in opened:
            with entry.lock:
                entry.writer.close()
        for handle in going:
            with suppress(OSError):  # the next start removes what is left
                self._files.remove(handle)
        return len(going)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the database is closed")

    def _check_there(self, entry: _Open) -> None:
        self._check_open()
        if entry.is_gone:
            raise _gone(entry.writer.staging.handle, "was discarded")

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._check_open()  # else its file was closed under it
            raise Stopped(f"{what}: {error}") from error

    def _is_there(self, handle: str, is_meant: Callable[[Staging], bool]) -> bool:
        entry, sealed = self._open.get(handle), self._sealed.get(handle)
        staging = entry.writer.staging if entry is not None else None if sealed is None else sealed.staging
        return staging is not None and is_meant(staging)


def _gone(handle: str, why: str) -> StagingGone:
    return StagingGone(f"what was staged under {handle} {why}; stage the rows again, all of them, under a new handle")
