"""What is staged: a disk that fails leaves it as it was, and nobody's file is closed under him."""

import threading

import pyarrow as pa
import pytest

import kolk
from kolk.engine.database import Engine
from kolk.errors import Corrupted, DiskFull, KolkError, StagingGone, Stopped
from kolk.model.transaction import CommitRequest, Staging, Verdict
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")
HANDLE = "0123456789abcdef" * 2


class Files(OsDisk):
    """A disk on which the files of stagings fail as the test says."""

    def __init__(self):
        self.write_error = None
        self.sync_error = None
        self.is_torn = False

    def open_append(self, path):
        file = super().open_append(path)
        if not path.endswith(".rows"):
            return file
        write, sync = file.write, file.sync

        def failing_write(parts):
            if self.write_error is None:
                return write(parts)
            write([bytes(part)[:3] for part in parts])  # some of it is in the file
            raise self.write_error

        def failing_sync():
            if self.sync_error is not None:
                raise self.sync_error
            sync()

        return _Failing(file, failing_write, failing_sync)


class _Failing:
    def __init__(self, file, write, sync):
        self._file = file
        self.write = write
        self.sync = sync

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.fixture
def disk():
    return Files()


@pytest.fixture
def engine(tmp_path, disk):
    config = kolk.EngineConfig(durability="process", kv_block_cache_bytes=2**23, kv_write_buffer_bytes=2**23)
    with_engine = Engine(Folder(tmp_path / "data"), config, disk=disk)
    yield with_engine
    with_engine.close()


@pytest.fixture
def table(engine):
    from kolk.model.table import TableSpec

    return engine.create_table(TableSpec.make("t", SCHEMA, buckets=2))


def about(table, handle=HANDLE):
    return Staging(handle=handle, app="app", version=1, table=table.id, schema_id=table.schema.id)


def batch(*ids):
    return pa.RecordBatch.from_pylist([{"id": id, "v": "x"} for id in ids], schema=SCHEMA.arrow)


def commit(engine, table, *handles):
    return engine.commit_transaction(CommitRequest(app="app", version=1, handles={table.id: handles}))


@pytest.mark.parametrize(("error", "told"), [(DiskFull("full"), DiskFull), (OSError(5, "broken"), Stopped)])
def test_a_batch_that_could_not_be_written_can_be_staged_again(engine, disk, table, error, told):
    engine.stage(about(table), 0, batch(1))
    disk.write_error = error
    with pytest.raises(told):
        engine.stage(about(table), 1, batch(2))
    disk.write_error = None

    engine.stage(about(table), 1, batch(2))
    sealed = engine.seal(about(table), 2)

    assert sealed.rows == 2
    assert engine.transactions.counts().staged_bytes == sealed.bytes
    assert commit(engine, table, HANDLE).verdict is Verdict.COMMITTED
    assert engine.transactions.counts().staged_bytes == 0


def test_what_could_not_be_synced_is_worth_nothing(engine, disk, table):
    engine.stage(about(table), 0, batch(1))
    disk.sync_error = OSError(5, "broken")

    with pytest.raises(Stopped):
        engine.seal(about(table), 1)

    disk.sync_error = None
    with pytest.raises(StagingGone):
        engine.seal(about(table), 1)
    with pytest.raises(StagingGone):
        commit(engine, table, HANDLE)
    assert engine.transactions.counts().staged_bytes == 0


def test_rows_that_are_damaged_on_disk_are_not_committed(engine, tmp_path, table):
    engine.stage(about(table), 0, batch(1, 2, 3))
    engine.seal(about(table), 1)
    path = tmp_path / "data" / "staging" / f"{HANDLE}.rows"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(Corrupted, match="stage them again"):
        commit(engine, table, HANDLE)

    assert engine.list_transactions()[0].state == "sealed"


def test_those_who_stage_seal_and_discard_at_once_get_a_typed_answer_and_no_other_file_is_harmed(engine, table):
    strange = []

    def work(seed):
        handle = f"{seed % 4:032x}"
        for number in range(60):
            try:
                match (seed + number) % 5:
                    case 0 | 1 | 2:
                        engine.stage(about(table, handle), number % 3, batch(number))
                    case 3:
                        engine.seal(about(table, handle), number % 4)
                    case _:
                        engine.discard([handle])
            except KolkError:
                pass
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                strange.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert strange == []
    engine.discard([f"{place:032x}" for place in range(4)])
    assert engine.transactions.counts() == type(engine.transactions.counts())(handles=0, staged_bytes=0)
    assert list((engine.path / "staging").iterdir()) == []
