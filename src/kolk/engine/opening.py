"""How the files of a bucket are opened: whole, to be served, or its log alone, to see where that ends."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kolk.config import EngineConfig
from kolk.merge.append import Appender
from kolk.merge.engine import Merger
from kolk.model.ids import BucketId, TableId
from kolk.runtime.clock import WatchedClock
from kolk.runtime.disk import Disk
from kolk.storage.kv import Kv, KvMemory
from kolk.storage.log import Log
from kolk.storage.segment import Segment
from kolk.tablet.owning import Guard, OwnerView
from kolk.tablet.recovery import Copies, open_tablet
from kolk.tablet.signal import Signal
from kolk.tablet.tablet import Tablet

OpenKv = Callable[[Path, KvMemory], Kv]


@dataclass(frozen=True, slots=True)
class BucketState:
    """Where a bucket's log starts and ends, and its files, at one moment."""

    bucket: BucketId
    start: int
    end: int
    segments: Sequence[Segment]
    owners: Mapping[int, OwnerView] | None = None
    """What there is of each owner's frames; None if nobody has looked."""

    @staticmethod
    def of(tablet: Tablet) -> "BucketState":
        """The state of an open bucket."""
        return BucketState(tablet.bucket, tablet.log.start, tablet.end, tuple(tablet.log.segments), tablet.known_owners)


class Opening:
    """Opens buckets, which share the memory of one database. Thread-safe: it has no state."""

    def __init__(
        self,
        disk: Disk,
        config: EngineConfig,
        clock: WatchedClock,
        open_kv: OpenKv,
        signal_of: Callable[[TableId], Signal],
        guard_of: Callable[[TableId], Guard],
    ) -> None:
        self._disk = disk
        self._config = config
        self._clock = clock
        self._open_kv = open_kv
        self._signal_of = signal_of
        self._guard_of = guard_of
        self._memory = KvMemory(
            block_cache_bytes=config.kv_block_cache_bytes, write_buffer_bytes=config.kv_write_buffer_bytes
        )

    def tablet(self, bucket: BucketId, path: Path, merger: Merger | Appender, copies: Copies) -> Tablet:
        """The tablet of a bucket's folder, recovered, from one of these copies if need be."""
        return open_tablet(
            bucket,
            path,
            merger,
            disk=self._disk,
            open_log=self._log,
            open_kv=lambda kv_path: self._open_kv(kv_path, self._memory),
            clock=self._clock,
            signal=self._signal_of(bucket.table),
            copies=copies,
            guard=self._guard_of(bucket.table),
        )

    def read_only(self, path: Path) -> Kv:
        """The KV of a snapshot's folder, in which nothing is touched."""
        return Kv(path, self._memory, is_read_only=True)

    def state(self, bucket: BucketId, path: Path) -> BucketState:
        """The state of a bucket that is not open, as its log has it once it is recovered."""
        self._disk.make_folder(str(path))
        with closing(self._log(str(path / "log"))) as log:
            return BucketState(bucket, log.start, log.end, tuple(log.segments))

    def _log(self, folder: str) -> Log:
        return Log.open(self._disk, folder, self._config.durability, self._config.log_segment_bytes)
