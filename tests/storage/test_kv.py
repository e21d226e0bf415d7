"""One bucket's RocksDB: atomic batches, pinned views, and what rocksdict cannot do."""

import shutil

import pyarrow as pa
import pytest
from rocksdict import Options, Rdict
from tests.tablet.views import read

from kolk.codec.key import ROW_PREFIX
from kolk.codec.versions import RowCodecs
from kolk.errors import Closed, Corrupted, Stopped, TableNotFound
from kolk.merge.changes import KvWrites
from kolk.model.schema import Column, Schema
from kolk.storage.kv import Kv, KvMemory
from kolk.storage.view import View

SCHEMA = Schema([Column("id", "int")], ["id"])


@pytest.fixture
def memory():
    return KvMemory(block_cache_bytes=2**22, write_buffer_bytes=2**22)


@pytest.fixture
def kv(tmp_path, memory):
    store = Kv(tmp_path / "kv", memory)
    yield store
    store.close()


def put(kv: Kv, numbers, value: bytes = b"v") -> None:
    keys = [ROW_PREFIX + b"%05d" % number for number in numbers]
    kv.apply([KvWrites(keys, [value] * len(keys))], {})


def test_rows_and_records_are_written_together_and_kept_apart(kv):
    kv.apply([KvWrites([b"\x01a"], [b"1"])], {b"applied": b"7", b"w1": b"x"})

    assert kv.get([b"\x01a", b"\x01b"]) == [b"1", None]
    assert kv.records(b"") == {b"applied": b"7", b"w1": b"x"}
    assert kv.records(b"w") == {b"w1": b"x"}
    pin = kv.pin()
    assert pin.take(10).to_pylist() == [b"1"]
    pin.close()


def test_clearing_removes_every_row_and_no_record(kv):
    put(kv, range(10))
    kv.apply([], {b"applied": b"1"})

    kv.apply([], {b"applied": b"2"}, clear=True)

    assert list(kv.between(ROW_PREFIX, b"\x02")) == []
    assert kv.records(b"applied") == {b"applied": b"2"}


def test_a_record_set_to_none_is_gone(kv):
    kv.apply([], {b"w1": b"x"})
    kv.apply([], {b"w1": None})

    assert kv.records(b"") == {}


def test_a_range_has_its_start_and_not_its_end(kv):
    keys = [b"\x01a", b"\x01b", b"\x01c"]
    kv.apply([KvWrites(keys, [b"1", b"2", b"3"])], {})

    assert list(kv.between(b"\x01a", b"\x01c")) == [b"1", b"2"]
    assert list(kv.between(b"\x01b", b"\x02")) == [b"2", b"3"]


def test_a_pin_returns_the_old_rows_through_writes_flush_and_compaction(kv):
    put(kv, range(20_000), b"old")
    pin = kv.pin()
    put(kv, range(10_000), b"new")
    kv.apply([KvWrites(deletes=[ROW_PREFIX + b"%05d" % n for n in range(15_000, 20_000)])], {})
    kv.flush()
    kv.compact()

    values = pin.take(50_000)

    assert values.to_pylist() == [b"old"] * 20_000
    pin.close()


def test_a_rocksdict_snapshot_still_does_not_isolate_its_iterators(tmp_path):
    """When this fails, rocksdict was mended: views could then be snapshots, and this test should go."""
    db = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    db[b"a"] = b"1"
    snapshot = db.snapshot()
    db[b"b"] = b"2"

    assert snapshot[b"a"] == b"1"
    assert list(snapshot.keys()) == [b"a", b"b"]
    del snapshot
    db.close()


def test_pages_add_up_to_the_whole_and_the_end_is_checked(kv):
    put(kv, range(1000))
    pin = kv.pin()

    sizes = [len(pin.take(300)) for _ in range(5)]

    assert sizes == [300, 300, 300, 100, 0]
    pin.close()


def test_an_iterator_that_stops_early_is_noticed(kv):
    put(kv, range(100))
    pin = kv.pin()
    pin._values = iter([b"v", b"v"])
    put(kv, [100], b"the last")
    pin._cursor = kv._db.iter()

    with pytest.raises(Corrupted, match="before the last row"):
        pin.take(10)
    pin.close()


def test_pages_of_large_rows_stay_small(kv):
    put(kv, range(50), bytes(4 * 2**20 - 1000))
    pin = kv.pin()

    sizes = []
    while len(page := pin.take(1000)):
        sizes.append(len(page))

    assert sum(sizes) == 50
    assert max(sizes) <= 32
    pin.close()


def test_a_closed_kv_says_so(tmp_path, memory):
    kv = Kv(tmp_path / "kv", memory)
    kv.close()
    kv.close()

    for attempt in (lambda: kv.get([b"a"]), kv.pin, lambda: kv.apply([], {b"a": b"1"}), kv.flush):
        with pytest.raises(Closed):
            attempt()


def test_a_kv_reopens_after_its_pins_are_closed(tmp_path, memory):
    kv = Kv(tmp_path / "kv", memory)
    put(kv, range(10))
    pin = kv.pin()
    pin.take(1)
    pin.close()
    pin.close()
    kv.close()

    again = Kv(tmp_path / "kv", memory)
    assert len(list(again.between(ROW_PREFIX, b"\x02"))) == 10
    again.close()
    with pytest.raises(Closed):
        pin.take(1)


def test_a_damaged_folder_is_corrupted_by_name(tmp_path, memory):
    kv = Kv(tmp_path / "kv", memory)
    put(kv, range(100))
    kv.flush()
    kv.close()
    for manifest in (tmp_path / "kv").glob("MANIFEST-*"):
        manifest.write_bytes(b"garbage" * 20)

    with pytest.raises(Corrupted, match="RocksDB"):
        Kv(tmp_path / "kv", memory)
    shutil.rmtree(tmp_path / "kv")


def test_a_folder_that_cannot_even_be_looked_at_is_told_in_an_error_of_ours(tmp_path, memory):
    with pytest.raises(Stopped, match="too long"):
        Kv(tmp_path / ("k" * 300), memory)


def test_a_view_has_an_offset_and_pages_of_columns(kv):
    codec = RowCodecs(SCHEMA)
    values = codec.encode(pa.record_batch({"id": pa.array([1, 2, 3], pa.int32())}, SCHEMA.arrow)).to_pylist()
    keys = codec.keys_of(SCHEMA).encode(pa.record_batch({"id": pa.array([1, 2, 3], pa.int32())})).to_pylist()
    kv.apply([KvWrites(keys, values)], {})
    view = View(kv.pin(), 42, codec)

    assert view.offset == 42
    assert [row["id"] for row in read(view, rows=2)] == [1, 2, 3]
    view.close()
    with pytest.raises(Closed, match="closed"):
        view.take(b"", 1)


def test_a_revoked_view_tells_its_reader_why(kv):
    put(kv, range(3))
    view = View(kv.pin(), 0, RowCodecs(SCHEMA))

    view.revoke(TableNotFound("the table was dropped"))
    view.revoke(Closed("again"))

    with pytest.raises(TableNotFound, match="the table was dropped"):
        view.take(b"", 1)


def test_buckets_share_one_block_cache(tmp_path, memory):
    first, second = Kv(tmp_path / "1", memory), Kv(tmp_path / "2", memory)
    put(first, range(10_000), bytes(100))
    first.flush()
    list(first.between(ROW_PREFIX, b"\x02"))

    used = [kv._db.property_int_value("rocksdb.block-cache-usage") for kv in (first, second)]

    assert used[0] == used[1] > 0
    first.close()
    second.close()


def test_a_pin_ends_where_it_was_told_to_whatever_else_is_in_memory(kv):
    """rocksdict's iterators point into their options. If those went, the bytes of the next ones would be the bound."""
    keys = [ROW_PREFIX + b"%05d" % number for number in range(100)]
    kv.apply([KvWrites(keys, keys)], {})
    ends = [ROW_PREFIX + b"%05d" % number for number in range(50)]
    pins = [kv.pin(ROW_PREFIX, end) for end in ends]
    expected = [list(kv.between(ROW_PREFIX, end)) for end in ends]

    assert [pin.take(1_000).to_pylist() for pin in pins] == expected
    assert [pin.take_after(b"", 1_000).to_pylist() for pin in pins] == expected
    for pin in pins:
        pin.close()
