"""Disks that run full or fail: typed errors, nothing half applied, and on it goes where that is safe."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.faults.campaign import write_figures
from tests.faults.mounts import mounted, run, why_not

import kolk
from kolk.client.database import Database
from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import DiskFull, KolkError, PartialPut, Stopped, Unavailable
from kolk.model.ids import PlainTag
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.kv import Kv, KvMemory
from kolk.testing.faults import Call, FailingDisk

SCHEMA = kolk.Schema([kolk.Column("key", "int"), kolk.Column("value", "string")], primary_key=["key"])
EVENTS = kolk.Schema([kolk.Column("key", "int"), kolk.Column("value", "string")])
BUCKETS = 4
BUCKET = "/1/0/2/"
"""The folder of one bucket of the first table."""


@pytest.fixture
def disk():
    return FailingDisk()


@contextmanager
def database(folder: Path, disk: FailingDisk | None = None, **settings: int) -> Iterator[Database]:
    engine = Engine(Folder(folder, OsDisk()), EngineConfig(**settings), disk=disk)
    with Database(engine, engine.close, Rng()) as db:
        yield db


def rows(value: str, count: int = 100) -> list[dict]:
    return [{"key": key, "value": value} for key in range(count)]


def values(table: kolk.Table) -> set[str]:
    with table.scan() as scan:
        return set(scan.to_arrow().column("value").to_pylist())


def changes(table: kolk.Table) -> int:
    return sum(batch.num_rows for batch in table.changelog())


# --- unreadable


@pytest.mark.parametrize(
    "look",
    [
        lambda table: list(table.changelog()),
        lambda table: list(table.changelog(start=datetime(2020, 1, 1, tzinfo=UTC))),
        lambda table: table.scan(limit=5).to_arrow(),
    ],
)
def test_a_log_that_cannot_be_read_is_a_typed_error_and_can_be_read_again(tmp_path, disk, look):
    with database(tmp_path / "data", disk) as db:
        table = db.create_table("t", EVENTS)
        table.put(rows("before"))
        disk.fail_always(Call.READ, errno.EIO, within="/log/")

        with pytest.raises(Unavailable, match="cannot be read"):
            look(table)

        disk.heal()
        look(table)
        assert changes(table) == 100


# --- full


def test_a_put_on_a_full_disk_says_so_and_applies_nothing(tmp_path, disk):
    with database(tmp_path / "data", disk) as db:
        table = db.create_table("t", SCHEMA, buckets=BUCKETS)
        table.put(rows("before"))
        before = table.describe()
        disk.fail_always(Call.WRITE, errno.ENOSPC)

        with pytest.raises(DiskFull) as caught:
            table.put(rows("after"))

        assert caught.value.retriable
        assert values(table) == {"before"}
        assert table.describe() == before


def test_puts_that_failed_together_are_each_retried_by_their_own_tag(tmp_path, disk):
    engine = Engine(Folder(tmp_path / "data", OsDisk()), EngineConfig(), disk=disk)
    with Database(engine, engine.close, Rng()) as db:
        table = db.create_table("t", SCHEMA, buckets=1)
        table.put({"key": 0, "value": "before"})
        (tablet,) = engine._tablets.opened()
        disk.fail_next(Call.WRITE, errno.ENOSPC)
        errors: dict[int, DiskFull] = {}

        def put(key: int) -> None:
            try:
                table.put({"key": key, "value": "after"})
            except DiskFull as error:
                errors[key] = error

        threads = [threading.Thread(target=put, args=(key,)) for key in (1, 2)]
        with tablet.held():  # so that one pass serves both
            for thread in threads:
                thread.start()
            while len(tablet._queue) < len(threads):
                threading.Event().wait(0.001)
        for thread in threads:
            thread.join()

        assert errors[1] is not errors[2]
        assert errors[1].tag != errors[2].tag
        for key, error in errors.items():
            assert isinstance(error.tag, PlainTag)
            table.put({"key": key, "value": "after"}, tag=error.tag)
        assert [row["key"] for row in table.get([{"key": 1}, {"key": 2}]).to_pylist()] == [1, 2]


def test_when_space_is_freed_the_same_table_goes_on_without_a_restart(tmp_path, disk):
    with database(tmp_path / "data", disk) as db:
        table = db.create_table("t", SCHEMA, buckets=BUCKETS)
        table.put(rows("before"))
        disk.fail_always(Call.WRITE, errno.ENOSPC)
        for _ in range(3):
            with pytest.raises(DiskFull):
                table.put(rows("after"))

        disk.heal()
        table.put(rows("after"))

        assert values(table) == {"after"}
    with database(tmp_path / "data") as db:
        table = db.table("t")
        assert values(table) == {"after"}
        assert changes(table) == 300


def test_a_disk_that_is_full_when_the_log_rolls_is_as_harmless(tmp_path, disk):
    with database(tmp_path / "data", disk, log_segment_bytes=500) as db:
        table = db.create_table("t", SCHEMA, buckets=BUCKETS)
        table.put(rows("before"))
        disk.fail_always(Call.CREATE, errno.ENOSPC)
        with pytest.raises(DiskFull):
            table.put(rows("after"))

        disk.heal()
        table.put(rows("after"))

        assert values(table) == {"after"}
    with database(tmp_path / "data") as db:
        assert changes(db.table("t")) == 300


def test_a_kv_that_has_no_space_stops_its_bucket_and_does_not_claim_that_nothing_was_applied(tmp_path):
    class FullKv(Kv):
        is_full = False

        def apply(self, *arguments: object, **options: object) -> None:
            if FullKv.is_full:
                raise DiskFull("there is no space for a memtable")
            super().apply(*arguments, **options)

    def open_kv(path: Path, memory: KvMemory) -> Kv:
        return FullKv(path, memory)

    engine = Engine(Folder(tmp_path / "data", OsDisk()), EngineConfig(), open_kv=open_kv)
    with Database(engine, engine.close, Rng()) as db:
        table = db.create_table("t", EVENTS)
        FullKv.is_full = True
        with pytest.raises(PartialPut) as caught:
            table.put(rows("once"))
        FullKv.is_full = False

    assert isinstance(caught.value.failed["0"], Stopped)
    with database(tmp_path / "data") as db:
        db.table("t").put(rows("once"), tag=caught.value.tag)
        assert changes(db.table("t")) == 100


# --- failing


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["eio", "enospc"])
def test_a_failed_sync_stops_the_bucket_and_is_never_tried_again(tmp_path, disk, number):
    with database(tmp_path / "data", disk) as db:
        table = db.create_table("t", SCHEMA, buckets=BUCKETS)
        table.put(rows("before"))
        disk.fail_next(Call.SYNC, number, within=BUCKET)
        with pytest.raises(PartialPut) as caught:
            table.put(rows("after"))
        tried = disk.attempts(Call.SYNC, BUCKET)
        with pytest.raises(PartialPut) as again:
            table.put(rows("after"), tag=caught.value.tag)

        assert isinstance(caught.value.failed["2"], Stopped)
        assert isinstance(again.value.failed["2"], Stopped)
        assert not caught.value.retriable
        assert disk.attempts(Call.SYNC, BUCKET) == tried


def test_other_buckets_and_tables_go_on_beside_a_stopped_bucket(tmp_path, disk):
    with database(tmp_path / "data", disk) as db:
        table, other = (db.create_table(name, SCHEMA, buckets=BUCKETS) for name in ("t", "u"))
        table.put(rows("before"))
        disk.fail_next(Call.SYNC, errno.EIO, within=BUCKET)
        with pytest.raises(PartialPut) as caught:
            table.put(rows("after"))

        healthy = [row for row in rows("on") if _answers(table, row["key"])]
        offsets = table.put(healthy).offsets
        other.put(rows("on"))

        assert caught.value.acknowledged.keys() == {"0", "1", "3"}
        assert offsets.keys() == {"0", "1", "3"}
        assert values(other) == {"on"}
        with pytest.raises(Stopped):
            table.scan()


@pytest.mark.parametrize("call", [call for call in Call if call is not Call.READ], ids=lambda call: call.value)
def test_whatever_call_fails_all_that_was_acknowledged_is_there_after_reopening(tmp_path, disk, call):
    with database(tmp_path / "data", disk, log_segment_bytes=500) as db:
        table = db.create_table("t", SCHEMA, buckets=BUCKETS)
        table.put(rows("before"))
        # A roll syncs its folder twice; the first time is for the index, which is only a cache.
        disk.fail_next(call, errno.EIO, after=call is Call.SYNC_FOLDER, within=BUCKET)
        with pytest.raises(PartialPut) as caught:
            table.put(rows("after"))

    with database(tmp_path / "data") as db:
        table = db.table("t")
        ends = {bucket: span["end"] for bucket, span in table.describe()["offsets"].items()}
        acknowledged = caught.value.acknowledged
        assert {bucket: ends[bucket] for bucket in acknowledged} == acknowledged
        assert values(table) == {"before", "after"}

        table.put(rows("after"), tag=caught.value.tag)

        assert values(table) == {"after"}
        assert changes(table) == 300
        write_figures("a failed disk call", detail=call.value, times=1, puts=2, rows=200, lost=0, duplicated=0)


@pytest.mark.parametrize("schema", [SCHEMA, EVENTS], ids=["primary-key", "log"])
def test_a_retry_with_the_tag_of_a_partial_put_completes_it_and_doubles_nothing(tmp_path, disk, schema):
    with database(tmp_path / "data", disk) as db:
        table = db.create_table("t", schema, buckets=BUCKETS, bucket_key=["key"])
        disk.fail_always(Call.WRITE, errno.ENOSPC, within=BUCKET)
        with pytest.raises(PartialPut) as caught:
            table.put(rows("once"))
        error = caught.value
        disk.heal()

        done = table.put(rows("once"), tag=error.tag)
        again = table.put(rows("once"), tag=error.tag)

        assert error.failed.keys() == {"2"}
        assert error.retriable
        assert error.acknowledged.keys() == {"0", "1", "3"}
        assert done.offsets == error.acknowledged | {"2": done.offsets["2"]}
        assert again == done
        assert changes(table) == 100


# --- a real full disk


@pytest.mark.root
def test_on_a_real_full_disk_nothing_is_lost_and_more_space_is_enough_to_go_on(tmp_path):
    _skip_unless_mounting()
    target = tmp_path / "small"
    with mounted(target, "-t", "tmpfs", "-o", "size=6m", "none"):
        with kolk.connect(target / "data") as db:
            table = db.create_table("t", SCHEMA)
            acked, error = _put_until_full(table)
            for _ in range(3):
                with pytest.raises(DiskFull):
                    table.put(_wide(acked + 1))

            assert isinstance(error, DiskFull)
            assert values(table) == {_text(acked)}

            assert run("mount", "-o", "remount,size=24m", target).returncode == 0
            table.put(_wide(acked + 1))

            assert values(table) == {_text(acked + 1)}
        with kolk.connect(target / "data") as db:
            assert values(db.table("t")) == {_text(acked + 1)}
    write_figures("a full disk (tmpfs)", times=1, puts=acked + 1, rows=50 * (acked + 1), lost=0, duplicated=0)


@pytest.mark.root
def test_a_flush_that_found_the_disk_full_needs_no_restart_either(tmp_path):
    _skip_unless_mounting()
    target = tmp_path / "small"
    with mounted(target, "-t", "tmpfs", "-o", "size=12m", "none"):
        config = EngineConfig(kv_write_buffer_bytes=2 * 2**20)
        with kolk.connect(target / "data", config=config) as db:
            table = db.create_table("t", SCHEMA)
            table.put(rows("before"))
            _fill(target, leaving=3 * 2**20)
            keys = _put_distinct_until_full(table)

            (target / "fill").unlink()
            _put_with_one_retry(table, [{"key": -1, "value": "after"}])

            assert table.get_one(key=-1) == {"key": -1, "value": "after"}
            assert table.get(keys).num_rows == len(keys)


@pytest.mark.root
def test_closing_on_a_full_disk_raises_nothing_but_typed_errors(tmp_path):
    _skip_unless_mounting()
    target = tmp_path / "small"
    with mounted(target, "-t", "tmpfs", "-o", "size=12m", "none"):
        db = kolk.connect(target / "data")
        table = db.create_table("t", SCHEMA)
        table.put([{"key": key, "value": os.urandom(500).hex()} for key in range(1_000)])
        _fill(target, leaving=0)

        error = _error_of(db.close)

        assert error is None or isinstance(error, KolkError)
        (target / "fill").unlink()
        with kolk.connect(target / "data") as db, db.table("t").scan() as scan:
            assert scan.to_arrow().num_rows == 1_000


def _answers(table: kolk.Table, key: int) -> bool:
    try:
        return table.get_one(key=key) is not None
    except Stopped:
        return False


def _error_of(call) -> BaseException | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what kind of error it is, is the question
        return error
    return None


def _text(number: int) -> str:
    return f"{number:06}" * 100


def _wide(number: int) -> list[dict]:
    return rows(_text(number), 50)


def _put_until_full(table: kolk.Table) -> tuple[int, KolkError]:
    """The last put that was acknowledged, and why there was no further one."""
    for number in range(10_000):
        try:
            table.put(_wide(number))
        except KolkError as error:
            return number - 1, error
    raise AssertionError("the disk is never full")


def _put_distinct_until_full(table: kolk.Table) -> list[int]:
    """Rows that do not compress, until there is no space for more; the keys that were acknowledged."""
    keys: list[int] = []
    for start in range(1_000, 100_000, 40):
        batch = [{"key": key, "value": os.urandom(500).hex()} for key in range(start, start + 40)]
        try:
            table.put(batch)
        except KolkError as error:
            if not error.retriable:
                raise
            return keys
        keys += range(start, start + 40)
    raise AssertionError("the disk is never full")


def _put_with_one_retry(table: kolk.Table, data: list[dict]) -> None:
    """RocksDB may tell only now that its flush failed: then the error says to retry, and the retry works."""
    try:
        table.put(data)
    except PartialPut as error:
        if not error.retriable:
            raise
        table.put(data, tag=error.tag)


def _fill(folder: Path, leaving: int) -> None:
    space = os.statvfs(folder)
    (folder / "fill").write_bytes(bytes(space.f_bavail * space.f_frsize - leaving))


def _skip_unless_mounting() -> None:
    reason = why_not()
    if reason:
        write_figures("a full disk (tmpfs)", skipped=reason)
        pytest.skip(f"no real full disk: {reason}")
