"""The small durable tables: compare-and-set, all or nothing."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kolk.errors import Busy, Closed, Corrupted, MetaConflict
from kolk.storage.meta import ABSENT, Meta, MetaChange

KEYS = st.sampled_from(["a", "a/1", "a/2", "b"])


@pytest.fixture
def meta(tmp_path):
    store = Meta(tmp_path / "meta.sqlite")
    yield store
    store.close()


def test_a_record_is_created_changed_and_deleted_by_version(meta):
    meta.write([MetaChange("k", b"1", ABSENT)])
    meta.write([MetaChange("k", b"2", 1)])
    assert meta.get("k").value == b"2"

    for stale in (ABSENT, 1):
        with pytest.raises(MetaConflict, match="'k'"):
            meta.write([MetaChange("k", b"3", stale)])
    meta.write([MetaChange("k", None, 2)])
    assert meta.get("k") is None


def test_changes_are_applied_all_or_none(meta):
    meta.write([MetaChange("a", b"1", ABSENT)])

    with pytest.raises(MetaConflict):
        meta.write([MetaChange("b", b"1", ABSENT), MetaChange("a", b"2", 99)])

    assert meta.get("b") is None
    assert meta.get("a").value == b"1"


def test_one_of_many_racing_writers_wins_each_round(meta):
    meta.write([MetaChange("k", b"", ABSENT)])
    wins: list[int] = []

    def race() -> None:
        for version in range(1, 21):
            try:
                meta.write([MetaChange("k", b"", version)])
                wins.append(version)
            except MetaConflict:
                pass

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(wins) == len(set(wins)) == meta.get("k").version - 1


class InterruptedMeta(Meta):
    """One whose writes a signal handler interrupts after their first change."""

    handler = None

    def _apply(self, change):
        super()._apply(change)
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()


def test_what_is_closed_in_the_middle_of_a_write_has_nothing_of_it(tmp_path):
    meta = InterruptedMeta(tmp_path / "m")
    meta.handler = meta.close

    with pytest.raises(Closed):
        meta.write([MetaChange("a", b"", ABSENT), MetaChange("b", b"", ABSENT)])

    meta = Meta(tmp_path / "m")
    assert meta.list("") == []
    meta.close()


def test_a_write_in_the_middle_of_another_is_refused_and_leaves_that_alone(tmp_path):
    meta, told = InterruptedMeta(tmp_path / "m"), []

    def write():
        with pytest.raises(Busy) as refused:
            meta.write([MetaChange("c", b"", ABSENT)])
        told.append(refused.value)

    meta.handler = write
    meta.write([MetaChange("a", b"", ABSENT), MetaChange("b", b"", ABSENT)])

    assert len(told) == 1
    assert [record.key for record in meta.list("")] == ["a", "b"]
    meta.close()


def test_records_survive_a_reopen(tmp_path):
    first = Meta(tmp_path / "m")
    first.write([MetaChange("a/1", b"x", ABSENT), MetaChange("a/2", b"y", ABSENT), MetaChange("b", b"z", ABSENT)])
    first.close()
    first.close()

    second = Meta(tmp_path / "m")
    assert [(record.key, record.value) for record in second.list("a/")] == [("a/1", b"x"), ("a/2", b"y")]
    second.close()


def test_a_write_syncs_unless_it_need_not_whatever_was_written_before(meta):
    """SQLite calls it 2, FULL, and 1, NORMAL, which in WAL mode syncs with the next that is FULL."""
    found = []
    for version, syncs in enumerate([True, False, True]):
        meta.write([MetaChange("k", b"", version)], syncs=syncs)
        found.append(meta._db.execute("PRAGMA synchronous").fetchone()[0])

    assert found == [2, 1, 2]
    assert meta._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    with pytest.raises(MetaConflict):
        meta.write([MetaChange("k", b"", ABSENT)], syncs=False)


def test_a_file_that_is_no_catalog_is_refused(tmp_path):
    (tmp_path / "m").write_bytes(b"not a database" * 100)

    with pytest.raises(Corrupted, match="restore"):
        Meta(tmp_path / "m")


class MetaAgainstADict(RuleBasedStateMachine):
    """Random writes with right and wrong versions."""

    @initialize()
    def start(self) -> None:
        self.meta = Meta(":memory:")
        self.model: dict[str, tuple[bytes, int]] = {}

    @rule(key=KEYS, value=st.none() | st.binary(max_size=4), shift=st.sampled_from([0, 0, 0, 1]))
    def write(self, key: str, value: bytes | None, shift: int) -> None:
        version = self.model[key][1] if key in self.model else ABSENT
        expected = version + shift
        possible = expected == version and (value is not None or key in self.model)
        if not possible:
            with pytest.raises(MetaConflict):
                self.meta.write([MetaChange(key, value, expected)])
            return
        self.meta.write([MetaChange(key, value, expected)])
        if value is None:
            del self.model[key]
        else:
            self.model[key] = (value, version + 1)

    @rule(prefix=st.sampled_from(["", "a", "a/", "z"]))
    def read(self, prefix: str) -> None:
        found = {record.key: (record.value, record.version) for record in self.meta.list(prefix)}
        assert found == {key: kept for key, kept in self.model.items() if key.startswith(prefix)}

    def teardown(self) -> None:
        if hasattr(self, "meta"):
            self.meta.close()


TestMetaAgainstADict = MetaAgainstADict.TestCase
TestMetaAgainstADict.settings = settings(stateful_step_count=20)
