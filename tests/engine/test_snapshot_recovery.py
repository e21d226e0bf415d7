"""A bucket that lost its KV: it comes back from the newest snapshot that is good and the log after it, or not at all.

Snapshot 1 has ten rows, snapshot 2 twenty, and thirty are in the log. What can be harmed is harmed while the database
is closed.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.engine.snapshot_bench import SnapshotBench, by_id, put

from kolk.errors import Corrupted, KolkError, Unavailable
from kolk.model.ids import PlainTag

OPTIONS = {"table.log.ttl": "1h"}
EXPECTED = dict.fromkeys(range(20), 0) | dict.fromkeys(range(10, 30), 1)
TAG = PlainTag(77, 5)
HOUR_MS = 3_600_000
FULL = os.environ.get("KOLK_FULL") == "1"


def made(path, *, is_trimmed):
    """A closed database as above; its log starts at 0, or at snapshot 1."""
    bench = SnapshotBench(path)
    table = bench.table(buckets=1, options=OPTIONS)
    put(table, range(10))
    bench.take(table)
    put(table, range(10, 20))
    table.put([{"id": 0, "n": 0}], tag=TAG)
    bench.take(table)
    put(table, range(10, 30), 1)
    bench.clock.advance(ms=2 * HOUR_MS)
    if is_trimmed:
        bench.engine.tick()
    start = table.describe()["offsets"]["0"]["start"]
    assert start == (10 if is_trimmed else 0)
    assert bench.ids(table) == {"0": [1, 2]}
    bench.close()


@pytest.fixture(scope="module", params=[False, True], ids=["whole log", "trimmed log"])
def closed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed") / "data"
    made(folder, is_trimmed=request.param)
    return folder, request.param


@pytest.fixture
def home(closed, tmp_path):
    shutil.copytree(closed[0], tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def is_trimmed(closed):
    return closed[1]


def kv_of(home):
    return home / "tables/1/0/0/kv"


def snapshot(home, id):
    return home / f"snapshots/1/0/0/{id}"


def flip(path, part=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * part)] ^= 4
    path.unlink()  # it may have other names
    path.write_bytes(data)


def own_file(home, id):
    """A file that no other snapshot has."""
    [found] = [path for path in snapshot(home, id).iterdir() if path.stat().st_nlink == 1 and "MANIFEST" in path.name]
    return found


def check(home, caplog=None):
    """Everything is there, is counted, goes on, and stays."""
    bench = SnapshotBench(home)
    try:
        table = bench.db.table("t")
        with table.scan() as scan:
            assert by_id(scan.to_arrow().to_pylist()) == EXPECTED
        end = table.describe()["offsets"]["0"]["end"]
        assert table.put([{"id": 0, "n": 9}], tag=TAG).offsets["0"] < end, "a retry is still recognised"
        assert table.get([{"id": 0}, {"id": 29}]).to_pylist() == [{"id": 0, "n": 0}, {"id": 29, "n": 1}]
        infos = bench.take(table)
        assert infos["0"].rows == 30
        assert by_id(bench.scanned(table)[0]) == EXPECTED
        bench.engine.reap()
        bench.check_files()
    finally:
        bench.close()
    bench = SnapshotBench(home)
    try:
        with bench.db.table("t").scan() as scan:
            assert by_id(scan.to_arrow().to_pylist()) == EXPECTED
    finally:
        bench.close()


def _delete(kv):
    shutil.rmtree(kv)


def _empty(kv):
    for path in kv.iterdir():
        path.unlink()


def _garbage(kv):
    for path in kv.iterdir():
        path.write_bytes(b"\xa5" * 1_000)


def _mark(kv):
    (kv / "DAMAGED").touch()


def _without_current(kv):
    (kv / "CURRENT").unlink()


def _cut_manifest(kv):
    [path] = kv.glob("MANIFEST-*")
    path.write_bytes(path.read_bytes()[:20])


def _without_tables(kv):
    for path in kv.glob("*.sst"):
        path.unlink()


HARMS = [_delete, _empty, _garbage, _mark, _without_current, _cut_manifest, _without_tables]
every_harm = pytest.mark.parametrize("harm", HARMS)
some_harm = pytest.mark.parametrize("harm", [_delete, _garbage])


@every_harm
def test_a_kv_that_is_gone_or_damaged_comes_back(home, harm):
    """I2, A5."""
    harm(kv_of(home))

    check(home)


def test_a_trimmed_log_and_a_kv_that_is_gone_need_the_newest_snapshot(home, is_trimmed, caplog):
    caplog.set_level("INFO")
    _delete(kv_of(home))

    check(home)

    assert "is that of snapshot 2" in caplog.text


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.99])
def test_a_flipped_bit_in_the_kv_is_met_and_mended(home, part):
    """It may only be met by whoever reads the block; then the next start mends it."""
    for path in kv_of(home).glob("*.sst"):
        flip(path, part)
    met = []
    bench = SnapshotBench(home)
    try:
        with bench.db.table("t").scan() as scan:
            assert by_id(scan.to_arrow().to_pylist()) == EXPECTED
    except Corrupted as error:
        met.append(str(error))
    finally:
        bench.close()

    assert all("reopen" in each for each in met)
    check(home)


@some_harm
@pytest.mark.parametrize("is_missing", [False, True])
def test_if_the_newest_snapshot_is_damaged_the_one_before_it_takes_its_place(home, harm, is_missing):
    """A4."""
    harm(kv_of(home))
    if is_missing:
        own_file(home, 2).unlink()
    else:
        flip(own_file(home, 2))

    check(home)


def _flip_all(home):
    for id in (1, 2):
        flip(own_file(home, id))


def _unlink_all(home):
    for id in (1, 2):
        own_file(home, id).unlink()


def _flip_manifests(home):
    for id in (1, 2):
        flip(snapshot(home, id).with_suffix(".manifest"))


@some_harm
@pytest.mark.parametrize("all_harm", [_flip_all, _unlink_all, _flip_manifests])
def test_if_all_are_damaged_the_log_is_enough_as_long_as_it_is_whole(home, is_trimmed, harm, all_harm):
    harm(kv_of(home))
    all_harm(home)
    left = {file.name: file.read_bytes() for file in kv_of(home).glob("*.sst")}

    if not is_trimmed:
        check(home)
        return
    for _ in range(2):
        bench = SnapshotBench(home)
        try:
            table = bench.db.table("t")
            for call in (
                lambda table=table: table.put([{"id": 5, "n": 5}]),
                lambda table=table: table.get([{"id": 5}]),
                lambda table=table: table.scan(),
                lambda bench=bench, table=table: bench.take(table),
            ):
                with pytest.raises(Corrupted, match=r"log starts at 10: nothing is served; restore .* backup"):
                    call()
        finally:
            bench.close()
    found = {file.name: file.read_bytes() for file in kv_of(home).glob("*.sst")}
    assert found.items() >= left.items(), "what there is of the KV may be all there is"


def test_a_good_kv_is_used_whatever_the_snapshots_are_like(home):
    _flip_all(home)
    _flip_manifests(home)

    check(home)


def test_damage_that_is_found_is_not_handed_on_to_the_next_snapshot(tmp_path):
    """Both share a file, and it is damaged. If the log is whole, the next snapshot has a copy of its own."""
    home = tmp_path / "data"
    made(home, is_trimmed=False)
    shared = next(path for path in sorted(snapshot(home, 1).glob("*.sst")) if path.stat().st_nlink > 1)
    data = bytearray(shared.read_bytes())
    data[100] ^= 1
    shared.write_bytes(data)
    _delete(kv_of(home))

    check(home)
    _delete(kv_of(home))
    check(home)


def test_a_disk_that_cannot_be_read_is_no_reason_to_begin_anew(home):
    """G5: the bucket is not opened, nothing is removed, and the next try finds everything."""
    _delete(kv_of(home))
    for within in ("/snapshots/", "/snapshots/1/0/0/2/"):
        before = sorted(str(path) for path in (home / "snapshots").rglob("*"))
        bench = SnapshotBench(home)
        try:
            bench.disk.fail_at(0, within)
            with pytest.raises(Unavailable, match="told to fail"):
                bench.db.table("t").get([{"id": 1}])
            bench.disk.heal()
            assert bench.db.table("t").get([{"id": 1}]).to_pylist() == [{"id": 1, "n": 0}]
        finally:
            bench.close()
        assert sorted(str(path) for path in (home / "snapshots").rglob("*")) == before
        _delete(kv_of(home))

    check(home)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restoration_that_ends_at_any_step_is_done_again(closed, tmp_path, is_killed):
    """An error, and the same process goes on; or the end of it, and another one begins."""
    failed = 0
    for step in range(0, 400, 1 if FULL else 9 if is_killed else 8):
        home = tmp_path / str(step)
        shutil.copytree(closed[0], home)
        _garbage(kv_of(home))
        bench = SnapshotBench(home)
        bench.disk.fail_at(step, "/tables/1/0/0/kv/")
        with suppress(KolkError):
            bench.db.table("t").get([{"id": 1}])
        has_failed = bench.disk.has_failed
        bench.disk.heal()
        if is_killed:
            shutil.copytree(home, tmp_path / "found")
        else:
            assert bench.db.table("t").get([{"id": 29}]).to_pylist() == [{"id": 29, "n": 1}]
        bench.close()
        check(Path(tmp_path / "found") if is_killed else home)
        shutil.rmtree(tmp_path / "found", ignore_errors=True)
        shutil.rmtree(home)
        failed += has_failed
        if not has_failed:
            break
    assert failed > 3
    assert not has_failed


def test_a_snapshot_that_is_older_than_the_log_is_no_help(home, is_trimmed):
    """Somebody put an old one back: what lies between is gone, and is not passed over."""
    if not is_trimmed:
        return
    bench = SnapshotBench(home)
    table = bench.db.table("t")
    put(table, range(10, 30), 1)
    bench.take(table)
    put(table, range(10, 30), 2)
    bench.take(table)
    bench.clock.advance(ms=2 * HOUR_MS)
    bench.engine.tick()
    assert table.describe()["offsets"]["0"]["start"] > 20
    bench.close()
    kept = home.parent / "old"
    made(kept, is_trimmed=False)
    for path in (home / "snapshots/1/0/0").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("1", "2"):
        shutil.copytree(snapshot(kept, name), snapshot(home, name))
        shutil.copy(snapshot(kept, name).with_suffix(".manifest"), snapshot(home, name).with_suffix(".manifest"))
    _delete(kv_of(home))

    bench = SnapshotBench(home)
    try:
        with pytest.raises(Corrupted, match="restore"):
            bench.db.table("t").get([{"id": 1}])
    finally:
        bench.close()
