"""The record of partitions: against a dict, over restarts, and trimmed to what is kept."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kolk
from kolk.engine import partitions as module
from kolk.engine.partitions import Partitions
from kolk.errors import InvalidArgument, MetaConflict, PartitionDropped, PartitionNotFound, TableNotFound
from kolk.model.ids import TableId
from kolk.model.partition import Partition
from kolk.model.table import TableInfo, TableSpec
from kolk.storage.meta import Meta
from kolk.testing.clock import ManualClock

SCHEMA = kolk.Schema([kolk.Column("day", "string"), kolk.Column("key", "int")], primary_key=["day", "key"])
KEPT = 6
NAMES = st.sampled_from([f"day={letter}" for letter in "abcde"])


def table(number=1, buckets=2):
    spec = TableSpec.make("t", SCHEMA, buckets=buckets, partition_by=["day"])
    return TableInfo(id=TableId(number), spec=spec, created_ms=0)


def opened(meta, *tables):
    return Partitions(meta, ManualClock(), 1_000, tables, lambda table: None)


class Record(RuleBasedStateMachine):
    """One table's record, and another's beside it that nothing may touch."""

    @initialize()
    def open(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "EVENTS_MAX", KEPT)
        self.folder = tempfile.TemporaryDirectory()
        self.meta = Meta(Path(self.folder.name) / "meta.sqlite")
        self.info, self.other = table(1), table(11)
        self.partitions = opened(self.meta, self.info, self.other)
        self.partitions.create(self.other, ["day=z"])
        self.model = {}
        self.events = []

    @rule(names=st.lists(NAMES, min_size=1, max_size=3))
    def create(self, names):
        for name in dict.fromkeys(names):
            if name not in self.model:
                self.events.append(("created", name))
                self.model[name] = len(self.events)
        layout = self.partitions.create(self.info, names)
        assert layout is self.partitions.of(self.info)

    @rule(name=NAMES)
    def remove(self, name):
        if name not in self.model:
            with pytest.raises(PartitionNotFound, match=name):
                self.partitions.named(self.info, name)
            return
        found = self.partitions.named(self.info, name)
        bucket = self.info.bucket_id(1, found)
        self.partitions.check_alive(bucket)
        self.partitions.remove(self.info, found, [3, None])
        self.events.append(("dropped", name))
        del self.model[name]
        with pytest.raises(PartitionDropped, match=name):
            self.partitions.check_alive(bucket)

    @rule(name=NAMES)
    def make_anew(self, name):
        if name in self.model:
            old = self.info.bucket_id(0, self.partitions.named(self.info, name))
            self.remove(name)
            self.create([name])
            with pytest.raises(PartitionDropped):
                self.partitions.check_alive(old)

    @rule()
    def forget(self):
        self.partitions.forget(self.info.id)
        self.model, self.events = {}, []

    @rule()
    def reopen(self):
        self.meta.close()
        self.meta = Meta(Path(self.folder.name) / "meta.sqlite")
        self.partitions = opened(self.meta, self.info, self.other)

    @rule()
    def reopen_after_the_table_was_dropped(self):
        self.partitions = opened(self.meta, self.other)
        self.partitions = opened(self.meta, self.info, self.other)
        self.model, self.events = {}, []

    @invariant()
    def the_record_is_the_model(self):
        if not hasattr(self, "model"):
            return
        layout = self.partitions.of(self.info)
        assert {name: each.id for name, each in layout.partitions.items()} == self.model
        assert layout.position == len(self.events) + 1
        assert [(event.kind.value, event.partition.name) for event in layout.events] == self.events[-KEPT:]
        assert [event.number for event in layout.events] == list(range(layout.start, layout.position))
        assert set(self.partitions.of(self.other).partitions) == {"day=z"}
        assert len(self.meta.list("partition-event/000000000001/")) == len(layout.events)
        assert [bucket.name for bucket in self.partitions.buckets(self.info)] == [
            f"{name}/{bucket}" for name in sorted(self.model, key=lambda name: self.model[name]) for bucket in (0, 1)
        ]

    def teardown(self):
        if hasattr(self, "meta"):
            self.patch.undo()
            self.meta.close()
            self.folder.cleanup()


TestRecord = Record.TestCase
TestRecord.settings = settings(max_examples=30, stateful_step_count=30)


@pytest.fixture
def meta(tmp_path):
    made = Meta(tmp_path / "meta.sqlite")
    yield made
    made.close()


@pytest.mark.parametrize(
    "name", ["", "0", "day=a", "day=a/", "day=a/2", "day=a/-1", "day=a/00", "day=a/0/0", "/0", "day=a/" + "9" * 10_000]
)
def test_what_is_no_bucket_is_refused_in_few_words(meta, name):
    partitions = opened(meta, table())
    partitions.create(table(), ["day=a"])

    with pytest.raises((InvalidArgument, PartitionNotFound)) as caught:
        partitions.bucket(table(), name)

    assert len(str(caught.value)) < 400
    assert partitions.bucket(table(), "day=a/1").name == "day=a/1"


def test_a_table_that_was_dropped_meanwhile_gets_no_partition(meta):
    def check(table):
        raise TableNotFound("this table was dropped")

    partitions = Partitions(meta, ManualClock(), 1_000, [table()], check)

    with pytest.raises(TableNotFound):
        partitions.create(table(), ["day=a"])
    assert meta.list("") == []


def test_what_is_shown_is_what_is_written_also_if_writing_fails(meta):
    partitions = opened(meta, table())
    partitions.create(table(), ["day=a"])
    rival = opened(meta, table())
    rival.create(table(), ["day=b"])

    with pytest.raises(MetaConflict):
        partitions.create(table(), ["day=c"])

    assert list(partitions.of(table()).partitions) == ["day=a", "day=b"]
    assert partitions.create(table(), ["day=c"]).position == 4


def test_an_interrupt_after_the_write_does_not_hide_it(meta, monkeypatch):
    partitions = opened(meta, table())
    write = meta.write

    def interrupted(changes):
        write(changes)
        raise KeyboardInterrupt

    monkeypatch.setattr(meta, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        partitions.create(table(), ["day=a"])
    monkeypatch.undo()

    assert list(partitions.of(table()).partitions) == ["day=a"]
    partitions.remove(
        table(), Partition(id=1, name="day=a", created_ms=partitions.named(table(), "day=a").created_ms), []
    )
    assert partitions.of(table()).position == 3
