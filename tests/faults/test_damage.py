"""Damaged files: the KV is built anew from the log, the log is refused, and nothing is ever skipped in silence."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import kolk
from kolk.config import EngineConfig
from kolk.errors import Corrupted, KolkError
from kolk.model.ids import PlainTag

SCHEMA = kolk.Schema(
    [kolk.Column("group", "string"), kolk.Column("key", "int"), kolk.Column("value", "string")],
    primary_key=["group", "key"],
)
ROWS = 4_000
TAG = PlainTag(4_711, 0)
SMALL_SEGMENTS = EngineConfig(log_segment_bytes=16 * 1024)


def rows(start: int, count: int, value: str = "") -> list[dict]:
    return [{"group": "g", "key": key, "value": value or f"{key:050}"} for key in range(start, start + count)]


@pytest.fixture
def folder(tmp_path):
    """A closed database with one table, whose KV is flushed and whose log has several segments."""
    with kolk.connect(tmp_path / "data", config=SMALL_SEGMENTS) as db:
        table = db.create_table("t", SCHEMA, bucket_key=["group"])
        for start in range(0, ROWS, 500):
            table.put(rows(start, 500))
        table.put(rows(0, 1, "tagged"), tag=TAG)
    return tmp_path / "data"


@pytest.fixture
def kv(folder):
    return folder / "tables/1/0/0/kv"


@pytest.fixture
def log(folder):
    return folder / "tables/1/0/0/log"


def flip(path: Path, part: float) -> None:
    """Change one bit at this part of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * part)] ^= 4
    path.write_bytes(data)


def check_whole(folder: Path) -> None:
    """Every row is found in every way, and a retry is still recognised."""
    with kolk.connect(folder, config=SMALL_SEGMENTS) as db:
        table = db.table("t")
        end = table.describe()["offsets"]["0"]["end"]

        with table.scan() as scan:
            assert scan.to_arrow().num_rows == ROWS
        assert table.prefix(group="g").num_rows == ROWS
        assert table.get([("g", key) for key in range(ROWS)]).num_rows == ROWS
        assert table.put(rows(0, 1, "tagged"), tag=TAG).offsets == {"0": end}
        assert table.describe()["offsets"]["0"]["end"] == end


# --- the KV

KV_DAMAGES: dict[str, Callable[[Path], object]] = {
    "the folder is gone": shutil.rmtree,
    "CURRENT is gone": lambda kv: (kv / "CURRENT").unlink(),
    "CURRENT is garbage": lambda kv: (kv / "CURRENT").write_text("garbage\n"),
    "the manifest is gone": lambda kv: next(kv.glob("MANIFEST*")).unlink(),
    "the manifest is cut": lambda kv: os.truncate(next(kv.glob("MANIFEST*")), 60),
    "the manifest is garbage": lambda kv: next(kv.glob("MANIFEST*")).write_bytes(b"q" * 500),
    "a table file is gone": lambda kv: next(kv.glob("*.sst")).unlink(),
    "a table file is cut": lambda kv: os.truncate(next(kv.glob("*.sst")), 5_000),
    "a table file is garbage": lambda kv: next(kv.glob("*.sst")).write_bytes(b"q" * 5_000),
}


@pytest.mark.parametrize("damage", KV_DAMAGES.values(), ids=[name.replace(" ", "-") for name in KV_DAMAGES])
def test_a_damaged_kv_is_built_anew_from_the_log(folder, kv, damage):
    damage(kv)

    check_whole(folder)


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 0.75])
def test_a_flipped_bit_in_a_table_file_is_refused_or_repaired_by_every_read_but_never_skipped(folder, kv, part):
    flip(next(kv.glob("*.sst")), part)

    with kolk.connect(folder, config=SMALL_SEGMENTS) as db:
        table = db.table("t")
        reads = {
            "scan": lambda: table.scan().to_arrow().num_rows,
            "prefix": lambda: table.prefix(group="g").num_rows,
            "get": lambda: table.get([("g", key) for key in range(ROWS)]).num_rows,
        }
        answers = {name: _answer(read) for name, read in reads.items()}

    assert set(answers.values()) <= {ROWS, "Corrupted"}, answers


def test_after_a_flipped_bit_in_a_table_file_was_noticed_reopening_repairs_it_as_the_error_says(folder, kv):
    flip(next(kv.glob("*.sst")), 0.5)
    with kolk.connect(folder, config=SMALL_SEGMENTS) as db, pytest.raises(Corrupted):
        db.table("t").scan().to_arrow()

    check_whole(folder)


@pytest.mark.parametrize("part", [0.2, 0.4, 0.6, 0.8])
def test_a_flipped_bit_among_the_write_tags_does_not_let_a_retry_be_applied_twice(tmp_path, part):
    tags = [PlainTag(random.Random(writer).getrandbits(128), 0) for writer in range(800)]
    config = EngineConfig(durability="process")
    with kolk.connect(tmp_path / "data", config=config) as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("key", "int")]))
        for tag in tags:
            table.put([{"key": 1}], tag=tag)
    flip(next((tmp_path / "data/tables/1/0/0/kv").glob("*.sst")), part)

    with kolk.connect(tmp_path / "data", config=config) as db:
        table = db.table("t")
        answers = {_answer(lambda tag=tag: table.put([{"key": 1}], tag=tag).offsets["0"]) for tag in tags}

    assert answers <= {"Corrupted", *range(1, len(tags) + 1)}


def _answer(read: Callable[[], int]) -> int | str:
    try:
        return read()
    except Corrupted:
        return "Corrupted"


# --- the log


def test_a_flipped_bit_in_a_sealed_segment_is_refused_when_it_is_read_and_never_skipped(folder, log):
    flip(sorted(log.glob("*.log"))[1], 0.5)
    seen = 0

    with kolk.connect(folder, config=SMALL_SEGMENTS) as db:
        table = db.table("t")
        with pytest.raises(Corrupted, match="not what was written"):  # noqa: PT012 - it may fail at any page
            for batch in table.changelog():
                assert batch.column("_log_offset")[0].as_py() == seen
                seen += batch.num_rows

        assert seen < ROWS
        with table.scan() as scan:
            assert scan.to_arrow().num_rows == ROWS


def test_a_kv_is_not_built_anew_from_a_damaged_log(folder, kv, log):
    flip(sorted(log.glob("*.log"))[1], 0.5)
    shutil.rmtree(kv)

    with kolk.connect(folder, config=SMALL_SEGMENTS) as db:
        for _ in range(2):
            with pytest.raises(Corrupted):
                db.table("t").scan()


def test_a_flipped_bit_in_the_last_segment_is_not_taken_for_a_torn_tail(folder, log):
    last = sorted(log.glob("*.log"))[-1]
    size = last.stat().st_size
    flip(last, 0.5)

    with kolk.connect(folder, config=SMALL_SEGMENTS) as db, pytest.raises(Corrupted):
        db.table("t").scan()

    assert last.stat().st_size == size


def test_a_segment_that_is_gone_is_refused(folder, log):
    sorted(log.glob("*.log"))[1].unlink()

    with kolk.connect(folder, config=SMALL_SEGMENTS) as db, pytest.raises(Corrupted):
        db.table("t").scan()


def test_one_damaged_table_does_not_keep_the_others_from_serving(folder, log):
    with kolk.connect(folder, config=SMALL_SEGMENTS) as db:
        db.create_table("u", SCHEMA).put(rows(0, 10))
    flip(sorted(log.glob("*.log"))[-1], 0.5)

    with kolk.connect(folder, config=SMALL_SEGMENTS) as db:
        with pytest.raises(Corrupted):
            db.table("t").scan()
        with db.table("u").scan() as scan:
            assert scan.to_arrow().num_rows == 10


# --- the catalog and the folder


def _rot_pages(meta: Path) -> None:
    data = bytearray(meta.read_bytes())
    data[4096:] = b"q" * (len(data) - 4096)
    meta.write_bytes(data)


def _rot_record(meta: Path) -> None:
    db = sqlite3.connect(meta)
    db.execute("UPDATE record SET value = x'00ff' WHERE key LIKE 'table/%'")
    db.commit()
    db.close()


META_DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda meta: meta.write_bytes(b"q" * 8_192),
    "cut": lambda meta: os.truncate(meta, 4_096),
    "rotten pages": _rot_pages,
    "a rotten record": _rot_record,
    "empty": lambda meta: os.truncate(meta, 0),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", META_DAMAGES.values(), ids=[name.replace(" ", "-") for name in META_DAMAGES])
def test_a_damaged_catalog_is_a_typed_error_and_deletes_nothing(folder, damage):
    kept = shutil.copy(folder / "meta.sqlite", folder.parent / "kept")
    damage(folder / "meta.sqlite")

    error = _error_of(lambda: kolk.connect(folder).close())

    assert isinstance(error, Corrupted)
    for left in folder.glob("meta.sqlite*"):
        left.unlink()
    shutil.copy(kept, folder / "meta.sqlite")
    check_whole(folder)


def test_a_kill_while_a_folder_is_first_made_does_not_make_it_useless(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/LOCK").touch()
    (tmp_path / "data/FORMAT.tmp").write_text("kol")

    with kolk.connect(tmp_path / "data") as db:
        assert db.tables() == []


@pytest.mark.parametrize("text", ["", "kolk", "kolk one", "sqlite 3"])
def test_a_damaged_format_file_is_a_typed_error(folder, text):
    (folder / "FORMAT").write_text(text)

    with pytest.raises(KolkError):
        kolk.connect(folder)


def _error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what kind of error it is, is the question
        return error
    return None
