"""Which puts a bucket has already applied, so that a retry is told from a new put.

A plain put carries its writer's random id and the writer's own count of puts. Of each writer the last few
counts are kept with the end offsets they were answered with. The entry is written to the KV in the same batch
as the rows, and it is rebuilt from frame tags when the log is replayed, so a retry is recognised across a
restart too. Of a known writer nothing is guessed: a put at or below its newest forgotten count is refused. A writer
that was idle for a week is forgotten altogether. While the clock may be wrong about that, see ``WatchedClock``, those
that were last used are kept nevertheless.

Record: name ``w`` + writer (16 bytes); value ``i64 forgotten | i64 last use, ms | (i64 seq, i64 end) ...``.
"""

import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from kolk.errors import StaleTag
from kolk.model.ids import PlainTag
from kolk.runtime.clock import WatchedClock

KEPT_PER_WRITER = 5
WRITER_IDLE_MS_MAX = 7 * 24 * 3600 * 1000
WRITERS_MAX = 100_000
WRITERS_DOUBTED_MAX = 10_000
"""Of more than so many those that look idle go, whatever the clock is worth: where processes live for minutes only it
is never believed, and every one of them has a writer of its own."""
RECORD = b"w"
_NONE_FORGOTTEN = -1
_HEAD = struct.Struct("<qq")
_ENTRY = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Writer:
    """What a bucket remembers of one writer: its newest puts, and the greatest count it has forgotten."""

    kept: tuple[tuple[int, int], ...] = ()
    forgotten: int = _NONE_FORGOTTEN
    used_ms: int = 0

    def end_of(self, seq: int) -> int | None:
        """The end offset that this put was answered with; None for a put not seen before."""
        for known, end in self.kept:
            if known == seq:
                return end
        if seq <= self.forgotten:
            raise StaleTag(
                f"put {seq} of this writer is older than its last {KEPT_PER_WRITER}; whether it was applied is"
                " forgotten, so read the rows back before you write them again"
            )
        return None

    def after(self, seq: int, end: int, now_ms: int) -> "Writer":
        """The writer with this put remembered."""
        kept = tuple(sorted((*self.kept, (seq, end))))
        dropped, kept = kept[:-KEPT_PER_WRITER], kept[-KEPT_PER_WRITER:]
        forgotten = max((self.forgotten, *(old for old, _ in dropped)))
        return Writer(kept, forgotten, now_ms)


class Dedup:
    """The writers of one bucket, the longest idle first. Guarded by the tablet's lock."""

    def __init__(self, records: Mapping[bytes, bytes], clock: WatchedClock) -> None:
        self._clock = clock
        writers = {int.from_bytes(name[len(RECORD) :]): _decoded(value) for name, value in records.items()}
        self._writers = OrderedDict(sorted(writers.items(), key=lambda item: item[1].used_ms))

    def writer(self, tag: PlainTag) -> Writer:
        """What is known of the tag's writer."""
        return self._writers.get(tag.writer, Writer())

    def remember(self, writers: Mapping[int, Writer], now_ms: int) -> dict[bytes, bytes | None]:
        """Take in the writers of one pass and forget idle ones; the answer is what to write to the KV."""
        records: dict[bytes, bytes | None] = {}
        for number, writer in writers.items():
            self._writers[number] = writer
            self._writers.move_to_end(number)
            records[_name(number)] = _encoded(writer)
        while self._writers:
            number, writer = next(iter(self._writers.items()))
            if len(self._writers) <= self._room(writer, now_ms):
                break
            del self._writers[number]
            records[_name(number)] = None
        return records

    def _room(self, longest_idle: Writer, now_ms: int) -> int:
        """How many writers there may be without forgetting this one."""
        if now_ms - longest_idle.used_ms <= WRITER_IDLE_MS_MAX:
            return WRITERS_MAX
        return 0 if self._clock.has_passed(WRITER_IDLE_MS_MAX, longest_idle.used_ms) else WRITERS_DOUBTED_MAX


def _name(writer: int) -> bytes:
    return RECORD + writer.to_bytes(16)


def _encoded(writer: Writer) -> bytes:
    return _HEAD.pack(writer.forgotten, writer.used_ms) + b"".join(_ENTRY.pack(*entry) for entry in writer.kept)


def _decoded(value: bytes) -> Writer:
    forgotten, used_ms = _HEAD.unpack_from(value)
    kept = tuple((seq, end) for seq, end in _ENTRY.iter_unpack(value[_HEAD.size :]))
    return Writer(kept, forgotten, used_ms)
