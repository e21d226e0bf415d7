"""Followers against a small model: whatever is read, committed, lost, trimmed or taken over, none misses a change.

The model knows of each follower where it stands and when it was last used. A reader crashes by being forgotten in the
middle of its reading. The law of laws: what a follower is handed goes on exactly at its committed offset, or it is told
that it has lost it; and it loses nothing as long as it is live.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

import kolk
from kolk.engine.database import Engine
from kolk.errors import FollowerNotFound, FollowerTaken, HolderLost
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock

SETTINGS = kolk.EngineConfig(
    durability="process", kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22, log_segment_bytes=1
)
TTL_MS = round(SETTINGS.follower_ttl_seconds * 1000)
LOG_TTL_MS = 3_600_000
FULL = os.environ.get("KOLK_FULL") == "1"
NAMES = st.sampled_from(["a", "b"])
SPANS_MS = st.sampled_from([1_000, LOG_TTL_MS // 2, LOG_TTL_MS, TTL_MS // 2, TTL_MS])


class Reader:
    """A changelog that is being read, and what the model knows of it."""

    def __init__(self, name, changelog, generation):
        self.name = name
        self.generation = generation
        self.changelog = changelog
        self.batches = iter(changelog)
        self.position = changelog.offsets["0"]


class Followers(RuleBasedStateMachine):
    readers = Bundle("readers")

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.committed = {}
        self.owner = {}
        self.end = 0
        self.start = 0
        self.generation = 0
        self._open_engine()
        self.db.create_table("t", kolk.Schema([kolk.Column("n", "int")]), options={"table.log.ttl": "1h"})
        self.table = self.db.table("t")

    def _open_engine(self):
        self.engine = Engine(Folder(self.folder), SETTINGS, clock=self.clock)
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)

    @rule(count=st.integers(1, 3))
    def put(self, count):
        for _ in range(count):
            self.table.put({"n": self.end})
            self.end += 1

    @rule(span_ms=SPANS_MS)
    def wait(self, span_ms):
        self.clock.advance(ms=span_ms)

    @rule()
    def trim(self):
        live = [f.offsets["0"] for f in self.db.followers() if f.state == "live"]
        self.engine.tick()
        start = self.engine.bounds(self.table.info.id)["0"][0]
        assert start >= self.start
        assert all(start <= max(offset, self.start) for offset in live)
        self.start = start

    @rule(target=readers, name=NAMES)
    def read_as(self, name):
        expected = self.committed.get(name, self.start)
        if expected < self.start:
            with pytest.raises(HolderLost):
                self.table.changelog(follower=name)
            return None
        changelog = self.table.changelog(follower=name, follow=True, commit_interval=None)
        assert changelog.offsets == {"0": expected}
        self.committed[name] = expected
        reader = Reader(name, changelog, self.generation)
        self.owner[name] = reader
        return reader

    @rule(reader=readers)
    def read(self, reader):
        if self.is_dead(reader) or reader.position >= self.end:
            return
        try:
            found = next(reader.batches)["n"].to_pylist()
        except (FollowerTaken, FollowerNotFound):  # found out when it gave a sign of life
            assert self.owner.get(reader.name) is not reader
            reader.generation = -1
        except HolderLost:
            # One that was dropped has no committed offset any more; what counts is where its reader is.
            assert min(reader.position, self.committed.get(reader.name, reader.position)) < self.start
            reader.generation = -1
        else:
            assert found == list(range(reader.position, reader.position + len(found)))
            reader.position += len(found)

    @rule(reader=readers)
    def commit(self, reader):
        if self.is_dead(reader):
            return
        if reader.name not in self.committed:
            with pytest.raises(FollowerNotFound):
                reader.changelog.commit()
        elif self.owner.get(reader.name) is not reader:
            with pytest.raises(FollowerTaken):
                reader.changelog.commit()
        elif reader.position < self.start:
            with pytest.raises(HolderLost):
                reader.changelog.commit()
        else:
            reader.changelog.commit()
            self.committed[reader.name] = reader.position

    def is_dead(self, reader):
        return reader is None or reader.generation != self.generation

    @rule(name=NAMES)
    def drop(self, name):
        if self.committed.pop(name, None) is None:
            with pytest.raises(FollowerNotFound):
                self.db.drop_follower("t", name)
        else:
            self.owner.pop(name, None)
            self.db.drop_follower("t", name)

    @rule()
    def reopen(self):
        """Every reader dies with the process, with whatever it had in hand."""
        self.db.close()
        self._open_engine()
        self.table = self.db.table("t")
        self.owner = {}
        self.generation += 1

    @invariant()
    def what_is_listed_is_what_was_committed(self):
        if not hasattr(self, "db"):
            return
        assert {f.name: f.offsets["0"] for f in self.db.followers()} == self.committed

    def teardown(self):
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)


TestFollowers = Followers.TestCase
TestFollowers.settings = settings(max_examples=1000 if FULL else 50)
