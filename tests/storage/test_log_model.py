"""The log against a list: any program of appends, syncs, trims, failures and power cuts."""

import errno
from dataclasses import replace

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kolk.config import Durability
from kolk.errors import DiskFull, Stopped
from kolk.model.ids import PlainTag
from kolk.storage.log import Log, PendingFrame
from kolk.testing.disk import Crash, LossyDisk

FOLDER = "log"
lengths = st.one_of(st.integers(1, 60), st.sampled_from([600, 5_000]))
shapes = st.lists(st.tuples(st.integers(0, 3), lengths, st.booleans()), min_size=1, max_size=5)


class LogAgainstList(RuleBasedStateMachine):
    """The model is the list of frames, how many of them are durable, and where the log must at least start."""

    durability = Durability.MACHINE
    failing = ("append", "truncate", "remove", "sync", "sync_folder")

    @initialize(seed=st.integers(0, 2**32), segment_bytes=st.sampled_from([100, 400, 1_500, 20_000]))
    def start(self, seed, segment_bytes):
        self.segment_bytes = segment_bytes
        self.disk = LossyDisk(seed)
        self.frames = []
        self.durable = 0
        self.start_offset = 0
        self.seq = 0
        self.now = 0
        self.log = self.opened()

    def opened(self):
        return Log.open(self.disk, FOLDER, self.durability, self.segment_bytes)

    @property
    def whole(self):
        """How many frames there are up to the end of the last whole group."""
        closed = [place for place, (header, _) in enumerate(self.frames, 1) if not header.more]
        return closed[-1] if closed else 0

    def pending(self, shape):
        for rows, length, more in shape:
            self.seq += 1
            body = bytes([self.seq % 256]) * length if rows else b""
            yield PendingFrame(
                tag=PlainTag(1, self.seq),
                schema_id=0,
                rows=rows,
                body=pa.py_buffer(body) if rows else None,
                timestamp_ms=self.now,
                more=more,
            )

    def everything(self):
        return [(frame.header, frame.body.to_pybytes()) for frame in self.log.frames(self.log.start)]

    def in_pages(self):
        frames = []
        offset = self.log.start
        while offset < self.log.end:
            page = self.log.read(offset, limit_bytes=700)
            frames += [(frame.header, frame.body.to_pybytes()) for frame in page]
            offset = page[-1].header.end_offset
        return frames

    @rule(shape=shapes, passed=st.integers(0, 3))
    def append(self, shape, passed):
        self.now += passed
        pending = list(self.pending(shape))
        headers = self.log.append(pending)
        self.frames += [
            (header, frame.body.to_pybytes() if frame.body else b"")
            for header, frame in zip(headers, pending, strict=True)
        ]

    @rule(shape=shapes)
    def append_to_a_full_disk(self, shape):
        pending = list(self.pending(shape))
        self.disk.fail_next("append", OSError(errno.ENOSPC, "no space"))
        try:
            self.log.append(pending)
        except DiskFull:
            return
        raise AssertionError("it did not fail")

    @rule()
    def sync(self):
        self.log.sync()
        self.durable = max(self.durable, self.whole)

    @precondition(lambda self: self.whole == len(self.frames))
    @rule(shape=shapes)
    def take_back_a_group(self, shape):
        mark = self.log.mark()
        group = [replace(frame, more=True) for frame in self.pending(shape)]
        self.log.append(group[:2])
        self.log.append(group[2:])
        self.log.rollback(mark)

    @rule(share=st.floats(0, 1.1))
    def trim(self, share):
        below = int(self.log.end * share)
        self.log.trim(below)
        assert self.log.start <= max(below, self.start_offset)
        self.forget_trimmed()

    @precondition(lambda self: self.whole == len(self.frames))
    @rule()
    def clear(self):
        """What stands at the end without rows stays; its time may be that of what was sealed before it."""
        end, kept = self.log.end, [each for each in self.frames if each[0].base_offset == self.log.end]
        self.log.clear()
        assert self.log.start == self.log.end == end
        found = self.everything()
        assert [(header.tag, body) for header, body in found] == [(header.tag, body) for header, body in kept]
        assert all(new.timestamp_ms >= old.timestamp_ms for (new, _), (old, _) in zip(found, kept, strict=True))
        self.durable = max(self.durable - (len(self.frames) - len(found)), 0)
        self.frames, self.start_offset = found, end

    @precondition(lambda self: self.whole == len(self.frames))
    @rule(share=st.integers(1, 4))
    def thin(self, share):
        """Every so many of the last segment's frames stay; groups stay whole."""
        if self.log.segments[-1].has_rows:
            return
        chosen = set()

        def needed(frames):
            found = list(frames)
            chosen.update(frame.header.tag.seq for frame in found)
            groups = [place for place, frame in enumerate(found) if frame.header.more]
            kept = [frame for place, frame in enumerate(found) if groups or place % share == 0]
            chosen.difference_update(frame.header.tag.seq for frame in kept)
            return kept

        self.log.thin(needed)
        gone = [place for place, (header, _) in enumerate(self.frames) if header.tag.seq in chosen]
        self.durable -= sum(place < self.durable for place in gone)
        self.frames = [
            (replace(header, synced=found.synced), body)
            for (header, body), (found, _) in zip(
                [each for each in self.frames if each[0].tag.seq not in chosen], self.everything(), strict=True
            )
        ]

    def forget_trimmed(self):
        found = self.everything()
        gone = self.frames[: len(self.frames) - len(found)]
        assert found == self.frames[len(gone) :]
        assert all(header.end_offset <= self.log.start for header, _ in gone)
        self.frames = found
        self.durable = max(self.durable - len(gone), 0)
        self.start_offset = self.log.start

    @rule()
    def reopen(self):
        """The process dies, the machine lives: what was appended is there, whole groups only."""
        self.log = self.opened()
        self.frames = self.frames[: self.whole]
        self.durable = self.safe(len(self.frames))

    @rule(mode=st.sampled_from(Crash))
    def cut_power(self, mode):
        self.disk = self.disk.crash(mode)
        self.log = self.opened()
        self.check_survivors()

    @rule(choice=st.integers(0, 4), shape=shapes)
    def stop(self, choice, shape):
        """The disk fails, in whatever comes first; the log is opened again."""
        self.disk.fail_next(self.failing[choice % len(self.failing)], OSError(errno.EIO, "input/output error"))
        try:
            self.append(shape, 0)
            self.sync()
            self.trim(0.5)
        except Stopped:
            self.log = self.opened()
            self.skip_trimmed()
            self.check_survivors()
        self.disk.heal()

    def skip_trimmed(self):
        """A trim that stopped in the middle may have deleted something."""
        kept = {header.tag.seq for header, _ in self.everything()}
        while self.frames and self.frames[0][0].end_offset <= self.log.start and self.frames[0][0].tag.seq not in kept:
            del self.frames[0]
            self.durable = max(self.durable - 1, 0)
        self.start_offset = self.log.start

    def check_survivors(self):
        assert self.log.start == self.start_offset or not self.durable
        found = self.everything()
        assert found == self.frames[: len(found)]
        assert len(found) >= self.durable
        assert not (found and found[-1][0].more), "a group is never cut"
        self.frames = found
        self.durable = self.safe(len(found))
        self.start_offset = self.log.start

    def safe(self, frames):
        """How many of the frames of a log that was just opened are durable."""
        return frames

    @rule(share=st.floats(0, 1), limit=st.integers(1, 6_000), until=st.floats(0, 1))
    def read(self, share, limit, until):
        start, end = self.log.start, self.log.end
        offset, until = start + int((end - start) * share), start + int((end - start) * until)
        page = [
            (frame.header, frame.body.to_pybytes()) for frame in self.log.read(offset, limit_bytes=limit, until=until)
        ]
        wanted = [
            (header, body)
            for header, body in self.frames
            if header.rows and header.end_offset > offset and header.base_offset < until
        ]
        assert page == (wanted[: len(page)] if offset < until else [])
        assert page or offset >= until

    @rule(back=st.integers(-1, 40))
    def find_time(self, back):
        asked = self.now - back
        offsets = [header.base_offset for header, _ in self.frames if header.timestamp_ms >= asked]
        assert self.log.offset_at(asked) == (offsets[0] if offsets else self.log.end)

    @invariant()
    def the_log_is_the_list(self):
        assert self.everything() == self.frames
        assert self.in_pages() == [(header, body) for header, body in self.frames if header.rows]


class ProcessLogAgainstList(LogAgainstList):
    """Without syncs a power cut leaves any prefix, but still a prefix; no more is promised if syncs fail too."""

    durability = Durability.PROCESS
    failing = ("append", "truncate", "remove")

    @rule()
    def sync(self):
        self.log.sync()

    def safe(self, frames):
        return 0


# A program has fifty steps, each followed by a comparison of everything: a few hundred of them are a lot.
few = settings(max_examples=min(settings().max_examples, 300))
TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = few
TestProcessLogAgainstList = ProcessLogAgainstList.TestCase
TestProcessLogAgainstList.settings = few
