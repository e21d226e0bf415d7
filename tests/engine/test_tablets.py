"""The tablets of a database: how many are open, which of them rest, and what is known of those."""

import random
import shutil
import threading

import pytest

import kolk
from kolk.engine.database import Engine
from kolk.errors import PartialPut, PartitionDropped, Stopped, TableNotFound
from kolk.model.scan import ScanRequest
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.kv import Kv
from kolk.testing.clock import ManualClock

SCHEMA = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("key", "int"), kolk.Column("value", "int")], primary_key=["day", "key"]
)


class Opened:
    """A database of which few buckets stay open, and its tablets."""

    def __init__(self, folder, open_kv=Kv, **settings):
        self.clock = ManualClock()
        config = {"durability": "process", "kv_block_cache_bytes": 2**22, "kv_write_buffer_bytes": 2**22}
        self.engine = Engine(
            Folder(folder), kolk.EngineConfig(**(config | settings)), clock=self.clock, open_kv=open_kv
        )
        self.db = kolk.Database(self.engine, self.engine.close, Rng(), clock=self.clock)
        self.tablets = self.engine._tablets
        self.table = self.db.create_table("t", SCHEMA, partition_by=["day"])

    def names(self):
        return sorted(tablet.bucket.partition_name for tablet in self.tablets.opened())

    def bucket(self, day):
        return self.engine._partitions.bucket(self.table.info, f"day={day}/0")

    def put(self, day, key=1, value=0):
        self.table.put([{"day": day, "key": key, "value": value}])
        self.clock.advance(ms=1)


@pytest.fixture
def few(tmp_path):
    made = Opened(tmp_path / "data", buckets_open_max=2)
    yield made
    made.db.close()


def test_a_bucket_of_a_dropped_table_is_not_opened_again(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"), buckets=2)
        tablets = db._service._tablets
        db.drop_table("t")

        with pytest.raises(TableNotFound, match="was dropped"), tablets.use_one(table.info, table.info.bucket_id(1)):
            pass
        assert not (tmp_path / "data" / "tables" / str(table.info.id)).exists()


def test_a_bucket_of_a_dropped_partition_is_not_opened_again_and_its_files_are_gone(few, tmp_path):
    few.put("a")
    bucket = few.bucket("a")
    few.table.drop_partition(day="a")

    with pytest.raises(PartitionDropped), few.tablets.use_one(few.table.info, bucket):
        pass
    with pytest.raises(PartitionDropped):
        few.tablets.state(few.table.info, bucket)
    assert list((tmp_path / "data" / "tables" / str(few.table.info.id)).iterdir()) == []


def test_those_that_were_used_longest_ago_are_closed_when_there_are_too_many(few):
    for day in "abca":
        few.put(day)

    assert few.names() == ["day=a", "day=c"]


def test_those_in_use_stay_open_however_many_they_are(few):
    for day in "abcde":
        few.put(day)
    with few.tablets.use(few.table.info, [few.bucket(day) for day in "abcd"]) as tablets:
        few.put("e")

        assert few.names() == [f"day={day}" for day in "abcde"]
        assert all(tablet.refusal is None for tablet in tablets)
    few.put("f")
    assert len(few.names()) == 2


def test_those_that_are_scanned_stay_open_until_the_scan_is_over(few):
    for day in "abcd":
        few.put(day)
    with few.table.scan() as scan:
        few.put("e")
        assert few.names() == [f"day={day}" for day in "abcde"]

        assert scan.to_arrow().num_rows == 4
    few.put("f")
    assert len(few.names()) == 2


def test_what_is_known_of_a_bucket_that_rests_is_true_and_opens_nothing(few):
    for count, day in enumerate("abcd", 1):
        for key in range(count):
            few.put(day, key)
    opened = few.names()

    bounds = few.engine.bounds(few.table.info.id)
    bucket = few.engine._partitions.bucket(few.table.info, "day=a/0")
    page = few.engine._logs._read(few.table.info.id, None, bucket, 1, None)

    assert {name: end for name, (_, end) in bounds.items() if name != "partitions"} == {
        "day=a/0": 1,
        "day=b/0": 2,
        "day=c/0": 3,
        "day=d/0": 4,
    }
    assert (page.batch, page.next_offset) == (None, 1)
    assert few.names() == opened


def test_a_bucket_that_rested_goes_on_where_it_was(few):
    for value in range(3):
        for day in "abcd":
            few.put(day, value=value)

    assert few.table.get_one(day="a", key=1)["value"] == 2
    assert few.engine.bounds(few.table.info.id)["day=a/0"] == (0, 5)


def test_a_put_over_more_partitions_than_may_be_open_has_a_few_open_at_a_time(few):
    most = []

    def watched(take):
        def taken(*arguments):
            entry = take(*arguments)
            most.append(len(few.tablets.opened()))
            return entry

        return taken

    few.tablets._take = watched(few.tablets._take)
    few.table.put([{"day": day, "key": 1, "value": 1} for day in "abcdefgh"])

    assert max(most) <= 4
    assert few.engine.bounds(few.table.info.id)["day=h/0"] == (0, 1)


def test_a_put_of_which_a_later_part_cannot_be_opened_is_a_partial_put(few, monkeypatch):
    take = few.tablets._take

    def failing(info, bucket):
        if bucket.partition_name == "day=d":
            raise Stopped("the disk is gone")
        return take(info, bucket)

    monkeypatch.setattr(few.tablets, "_take", failing)
    with pytest.raises(PartialPut) as caught:
        few.table.put([{"day": day, "key": 1, "value": 1} for day in "abcdef"])
    monkeypatch.undo()

    assert set(caught.value.acknowledged) == {f"day={day}/0" for day in "abef"}
    assert set(caught.value.failed) == {"day=c/0", "day=d/0"}
    few.table.put([{"day": day, "key": 1, "value": 1} for day in "abcdef"], tag=caught.value.tag)
    assert set(few.engine.bounds(few.table.info.id).values()) == {(0, 1), (1, 7)}


def test_a_bucket_whose_files_cannot_be_read_says_so_also_to_those_who_only_ask_where_it_ends(few, tmp_path):
    few.put("a")
    folder = tmp_path / "data" / "tables" / str(few.table.info.id) / "1" / "0"
    few.tablets.rest(-1)
    few.db.close()
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    again = Engine(Folder(tmp_path / "data"), kolk.EngineConfig())

    with pytest.raises(Stopped, match="cannot be opened"):
        again.bounds(few.table.info.id)
    with pytest.raises(Stopped, match="cannot be opened"):
        again.open_scan(few.table.info.id, ScanRequest())
    again.drop_partition(few.table.info.id, "day=a")
    assert again.partitions(few.table.info.id) == []
    again.close()


def test_idle_buckets_are_closed_but_for_those_that_stay_warm(tmp_path, monkeypatch):
    monkeypatch.setattr("kolk.engine.tablets._WARM", 2)
    many = Opened(tmp_path / "data")
    for day in "abcde":
        many.put(day)
    with many.tablets.use_one(many.table.info, many.bucket("a")):
        many.clock.advance(seconds=many.engine.config.bucket_idle_seconds - 1)
        many.put("b")
        many.engine.tick()
        assert len(many.names()) == 5

        many.clock.advance(seconds=2)
        many.engine.tick()

        assert many.names() == ["day=a", "day=b"]
    many.db.close()


def test_a_drop_that_was_interrupted_acknowledges_nothing_and_is_finished_by_the_next_round(few, tmp_path, monkeypatch):
    few.put("a")

    def interrupted(bucket):
        raise KeyboardInterrupt

    monkeypatch.setattr(few.tablets, "drop_partition", interrupted)
    [tablet] = few.tablets.opened()
    with pytest.raises(KeyboardInterrupt):
        few.table.drop_partition(day="a")
    monkeypatch.undo()

    assert isinstance(tablet.refusal, PartitionDropped)
    assert few.table.partitions() == []
    few.engine.tick()
    assert few.names() == []
    few.put("a", value=9)
    assert few.table.get_one(day="a", key=1)["value"] == 9
    few.db.close()
    again = Engine(Folder(tmp_path / "data"), kolk.EngineConfig())
    assert len(list((tmp_path / "data" / "tables" / str(few.table.info.id)).iterdir())) == 1
    again.close()


def test_a_put_whose_partition_is_dropped_under_it_says_which_part_was_applied_and_is_completed(tmp_path):
    during = []

    class Meddled(Kv):
        def apply(self, *arguments, **options):
            super().apply(*arguments, **options)
            while during:
                during.pop()()

    made = Opened(tmp_path / "data", Meddled)
    made.table.add_partition(day="a")
    made.table.add_partition(day="b")
    during.append(lambda: made.table.drop_partition(day="b"))
    rows = [{"day": day, "key": 1, "value": 5} for day in "ab"]

    with pytest.raises(PartialPut) as caught:
        made.table.put(rows)
    assert caught.value.acknowledged == {"day=a/0": 1}
    assert isinstance(caught.value.failed["day=b/0"], PartitionDropped)
    assert caught.value.failed["day=b/0"].partition == "day=b"
    made.table.put(rows, tag=caught.value.tag)

    with made.table.scan() as scan:
        assert sorted(scan.to_arrow()["day"].to_pylist()) == ["a", "b"]
    assert made.engine.bounds(made.table.info.id)["day=a/0"] == (0, 1)
    made.db.close()


class Crowd:
    """Threads that each do one thing over and over until they are told to stop; what fails is kept."""

    def __init__(self, *works):
        self.failed = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work, seed)) for seed, work in enumerate(works)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, work, seed):
        rng = random.Random(seed)
        while not self._stop.is_set():
            try:
                work(rng)
            except PartitionDropped:
                continue
            except PartialPut as error:
                self.failed += [each for each in error.failed.values() if not isinstance(each, PartitionDropped)]
            except Exception as error:  # noqa: BLE001 - kept, and looked at by the test
                self.failed.append(error)
                return


def test_buckets_that_are_used_rested_and_dropped_at_once_are_never_used_closed(tmp_path):
    made = Opened(tmp_path / "data", buckets_open_max=2)

    def put(rng):
        made.table.put([{"day": rng.choice("abcdef"), "key": rng.randrange(9), "value": 1} for _ in range(3)])

    def get(rng):
        made.table.get([{"day": day, "key": rng.randrange(9)} for day in "abcdef"])

    def look(rng):
        made.engine.bounds(made.table.info.id)
        made.tablets.rest(-1)

    def scan(rng):
        with made.table.scan(on_partition=lambda event: None) as scan:
            scan.to_arrow()

    with Crowd(put, put, get, look, scan) as crowd:
        for place in range(60):
            made.table.drop_partition(day="abcdef"[place % 6], if_exists=True)

    assert crowd.failed == []
    assert all(not entry.uses for entry in made.tablets._entries.values())
    made.db.close()
