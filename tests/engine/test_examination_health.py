"""Databases that have been through much, and are well: a doctor finds nothing, compares all rows, leaves no trace."""

import math
import tracemalloc
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.engine.surgery import Patient
from tests.spec.owned import PLAIN, SUMS, TTL, Rack, open_rack

import kolk
from kolk.engine.examination import examined
from kolk.engine.restore import restore
from kolk.merge.changes import KvWrites
from kolk.testing.soundness import check_sound

KEYS = range(40)


@pytest.fixture
def rack(tmp_path):
    with open_rack(tmp_path / "data") as rack:
        yield rack


def every(**values):
    return {key: values for key in KEYS}


def checked(rack):
    """Sound as it is now, after a restart, and closed; the answer is the last look."""
    check_sound(rack.folder)
    rack.reopen()
    check_sound(rack.folder)
    rack.close()
    found = check_sound(rack.folder)
    rack._open()
    return found


def test_after_owners_undos_evictions_transactions_and_expired_rows(rack):
    t = rack.create("t", SUMS)
    at = kolk.Column("at", "timestamp(3)")
    other = rack.create("other", kolk.Schema([kolk.Column("k", "int"), at], "k"), options=TTL_OPTIONS)
    a, b = t.begin("a", ["pv"]), t.begin("b", ["top", "note"], ttl=10 * TTL)
    for epoch in range(3):
        a.put(every(pv=1), epoch)
        b.put(every(top=epoch, note=str(epoch)), epoch)
        with rack.db.transaction("job", epoch) as tx:
            tx.put([{"k": key, "title": f"{epoch}"} for key in KEYS], table="t", columns=["title"])
            tx.put([{"k": key, "at": moment(rack)} for key in KEYS], table="other")
        check_sound(rack.folder)
        if epoch < 2:
            a.commit(epoch)
    b.commit(2)
    b.delete(range(5), 3)
    t.begin("a", ["pv"]).put(every(pv=100), 2)  # fences and undoes the first
    check_sound(rack.folder)
    rack.clock.advance(seconds=TTL + 1)
    taken = t.begin("c", ["pv", "title"])  # evicts it
    taken.put(every(pv=7, title="c"), 0)
    check_sound(rack.folder)
    rack.clock.advance(seconds=7_200)
    rack.engine.tick()

    assert other.rows() == {}
    rack.db.release_lock("t", "c", keep=True)
    t.put([{"k": key, "pv": 1} for key in KEYS], columns=["pv"])
    found = checked(rack)
    assert (found.buckets, found.not_compared) == (4, [])
    assert found.frames > 30


TTL_OPTIONS = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at"}


def moment(rack):
    return datetime.fromtimestamp(rack.clock.now_ms() / 1_000, UTC).replace(tzinfo=None)


def test_after_tasks_that_were_tried_again_and_an_owner_that_has_other_columns(rack):
    t = rack.create(buckets=1)
    a = t.begin("a", ["pv"])
    for epoch in range(2):
        first = a.begin_task(epoch, 0)
        a.put(every(pv=1), epoch, ticket=first.ticket)
        again = a.begin_task(epoch, 0)
        a.put(every(pv=2), epoch, ticket=again.ticket)  # takes the first back
        a.seal(0, again.ticket, {"0": a.seq})
        check_sound(rack.folder)
        a.commit_tasks(epoch, {"0": (again.ticket, a.seq)})
    narrow = t.begin("a", ["top"])  # pv is free, and nothing was to be taken back
    narrow.put(every(top=1), 2)
    t.put([{"k": 1, "pv": 9}], columns=["pv"])
    check_sound(rack.folder)
    t.begin("a", ["top"])

    checked(rack)


def test_after_the_table_was_altered_again_and_again(rack):
    columns = [
        kolk.Column("k", "int"),
        kolk.Column("a", "int"),
        kolk.Column("f", "float"),
        kolk.Column("gone", "string"),
    ]
    t = rack.create("t", kolk.Schema(columns, "k"))
    t.put([{"k": key, "a": key, "f": math.nan, "gone": "x"} for key in KEYS])
    a = t.begin("a", ["a"])
    a.put(every(a=5), 0)
    for statement in (
        "ALTER TABLE t ADD COLUMN late BIGINT DEFAULT 7",
        "ALTER TABLE t ALTER COLUMN a TYPE BIGINT",
        "ALTER TABLE t DROP COLUMN gone",
        "ALTER TABLE t ALTER COLUMN f TYPE DOUBLE",
        "ALTER TABLE t RENAME COLUMN late TO later",
    ):
        rack.db.execute(statement)
        t.put([{"k": key, "f": math.nan if key % 2 else 0.1} for key in range(5)], columns=["f"])
        check_sound(rack.folder)
    t.begin("a", ["a"])  # in the newest version takes back what was written in the first
    t.table.delete([{"k": 3}], columns=["f"])

    assert checked(rack).not_compared == []


def test_after_logs_were_trimmed_and_rows_stand_in_snapshots(rack):
    rack.close()
    rack = Rack(rack.folder, log_segment_bytes=2_000)
    t = rack.create(options={"table.log.ttl": "1s"})
    for number in range(8):
        t.put([{"k": key, "title": "x", "pv": number} for key in KEYS], columns=["title", "pv"])
        rack.clock.advance(seconds=700)
        rack.engine.take_due()
    rack.engine.tick()
    t.begin("a", ["pv"]).put(every(pv=1))

    assert t.table.describe()["offsets"]["0"]["start"] > 0
    assert checked(rack).not_compared == []
    info = t.table.info
    rack.close()
    spoil(rack, info)
    assert [fault.law.value for fault in examined(rack.folder).found] == ["rows"]


def spoil(rack, info):
    """Copy a row under another key."""
    with Patient(rack.folder, info).kv() as kv:
        value = next(kv.between(b"\x01", b"\x02"))
        kv.apply([KvWrites([b"\x01\xff\x00\x00\x02"], [value])], {})


def test_tables_that_cannot_be_compared_are_named(rack):
    rack.create("wal", PLAIN, options={"table.changelog.image": "wal"}).put([{"k": 1, "a": 1}], columns=["a"])
    rack.db.create_table("log", kolk.Schema([kolk.Column("v", "int")])).put([{"v": 1}])
    with rack.db.transaction("job", 1) as tx:
        tx.put([{"k": 2, "a": 1}], table="wal", columns=["a"])
        tx.put([{"v": 2}], table="log")

    assert checked(rack).not_compared == ["wal"]


def test_after_partitions_came_and_went(rack):
    schema = kolk.Schema([kolk.Column("d", "int"), kolk.Column("k", "int"), kolk.Column("v", "int")], ["d", "k"])
    table = rack.db.create_table("p", schema, partition_by=["d"], buckets=2)
    with table.transaction("job", 1) as tx:
        tx.put([{"d": d, "k": k, "v": 1} for d in range(4) for k in range(10)])
    table.drop_partition({"d": 1})
    table.put([{"d": 1, "k": 1, "v": 2}])

    assert checked(rack).buckets > 4


@pytest.mark.parametrize("is_opened", [False, True], ids=["not opened yet", "opened"])
def test_a_restored_backup(rack, tmp_path, is_opened):
    one, two = rack.create("one"), rack.create("two", PLAIN)
    log = rack.db.create_table("log", kolk.Schema([kolk.Column("v", "int")]))
    with rack.db.transaction("job", 1) as tx:
        tx.truncate(table="one")  # so all buckets take part, also those without a row
        tx.put([{"k": 1, "pv": 1}], table="one", columns=["pv"])
        tx.put([{"k": key, "a": key} for key in KEYS], table="two", columns=["a"])
        tx.put([{"v": 1}], table="log")
    with rack.db.transaction("job", 2) as tx:
        tx.put([{"k": 2, "pv": 1}], table="one", columns=["pv"])
    two.put([{"k": 1, "a": 5}], columns=["a"])
    a = two.begin("a", ["b"])
    a.put(every(b="x"))
    a.commit()
    rack.db.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")

    if is_opened:
        with open_rack(tmp_path / "restored") as again:
            assert again.db.table("one").get_one(k=1)["pv"] == 1
            assert len(again.db.table("two").scan().to_arrow()) == len(KEYS)
            again.db.table("two").put([{"k": 99, "a": 1}], columns=["a"])

    check_sound(tmp_path / "restored")
    assert log.name == "log"
    assert one.rows()


def test_it_leaves_no_trace(rack):
    """Also where opening the database would tidy up: a torn tail, an index that is missing, files of a crash."""
    rack.close()
    rack = Rack(rack.folder, log_segment_bytes=2_000)
    t = rack.create(buckets=1)
    a = t.begin()
    for epoch in range(20):
        a.put(every(pv=1), epoch)
    rack.close()
    folder = rack.folder / "tables" / t_bucket(rack) / "log"
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 2
    segments[0].with_suffix(".index").unlink()
    segments[-1].write_bytes(segments[-1].read_bytes() + b"torn")
    (folder / "left.tmp").write_bytes(b"")
    before = traces(rack.folder)

    check_sound(rack.folder)

    assert traces(rack.folder) == before


def t_bucket(rack):
    return next(path.relative_to(rack.folder / "tables") for path in (rack.folder / "tables").glob("*/*/*")).as_posix()


def traces(folder):
    """Every file: its bytes, and when it was last written."""
    return {path: (path.stat().st_mtime_ns, None if path.is_dir() else path.read_bytes()) for path in folder.rglob("*")}


def test_what_it_keeps_in_memory_does_not_grow_with_the_log(rack):
    t = rack.create("t", kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "string")], "k"), buckets=1)
    for number in range(40):
        t.put([{"k": key, "v": f"{number:02}" * 16_384} for key in range(32)])  # 1 MiB, and as much of what it replaced
    rack.close()
    tracemalloc.start()
    arrow_before = pa.total_allocated_bytes()

    check_sound(rack.folder)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = sum(file.stat().st_size for file in rack.folder.rglob("*.log"))
    assert size > 70 * 2**20
    assert peak < 24 * 2**20
    assert pa.total_allocated_bytes() <= arrow_before
