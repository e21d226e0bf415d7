"""How ``format1.zip`` and ``format1.json`` were made: by the first version of the format, and never again.

The zip is a whole data folder as ``kill -9`` leaves it: part of each KV is flushed, the rest stands in the log alone,
and the catalog has no default and no counter of column ids. The JSON is what that version answered. Later versions
must read the one and answer the other, so neither is ever made anew; this file says what is in them.
"""

import datetime
import json
import shutil
import tempfile
import zipfile
from decimal import Decimal
from pathlib import Path

import kolk

HERE = Path(__file__).parent
CONFIG = kolk.EngineConfig(
    durability="process", log_segment_bytes=1500, kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22
)
TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(6, 2)", "char(3)", "string",
    "binary(2)", "bytes", "date", "time(3)", "timestamp", "timestamp_ltz(9)", "array<int>", "map<string, int>",
    "row<x int, y string>",
]  # fmt: skip
NOON = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
MIDNIGHT = NOON.replace(hour=0)
VALUES = [
    True, -1, 300, 70_000, 2**40, 0.5, 1e300, Decimal("1234.56"), "abc", "é\0z", b"\0\xff", b"",
    datetime.date(1969, 7, 20), datetime.time(1, 2, 3, 4000), NOON.replace(tzinfo=None), MIDNIGHT,
    [1, None], {"a": 1, "b": None}, {"x": 1, "y": None},
]  # fmt: skip


def wide_row(k: int) -> dict:
    """One row of every type; each third value is null, so that every column has both."""
    values = {f"c{place}": value if (place + k) % 3 else None for place, value in enumerate(VALUES)}
    return {"k": k, **values}


def fill(db: kolk.Database) -> None:
    """The tables and their first rows, which a close then flushes."""
    wide = [kolk.Column("k", "bigint"), *(kolk.Column(f"c{place}", type) for place, type in enumerate(TYPES))]
    db.create_table("wide", kolk.Schema(wide, "k"), buckets=2).put([wide_row(k) for k in range(6)])
    db.execute(
        "CREATE TABLE web.pages (page STRING, day DATE, pv INT NOT NULL, price FLOAT, tag CHAR(2),"
        " PRIMARY KEY (page, day)) DISTRIBUTED BY (page) INTO 3 BUCKETS"
    )
    day = datetime.date(2026, 11, 15)
    rows = [{"page": f"/{n}", "day": day, "pv": n, "price": n / 4, "tag": None} for n in range(8)]
    db.table("web.pages").put(rows)
    db.execute(
        "CREATE TABLE seen (id INT, v INT, note STRING, PRIMARY KEY (id)) WITH ('table.merge-engine' = 'versioned',"
        " 'table.merge-engine.versioned.ver-column' = 'v', 'table.changelog.image' = 'wal')"
    )
    db.table("seen").put([{"id": 1, "v": 5, "note": "five"}, {"id": 2, "v": None, "note": None}])
    db.execute("CREATE TABLE events (at TIMESTAMP, kind CHAR(4), n INT) DISTRIBUTED BY (n) INTO 2 BUCKETS")
    db.table("events").put([{"at": None, "kind": "tick", "n": n} for n in range(5)])


def go_on(db: kolk.Database) -> None:
    """What is in the logs alone: updates, partial puts, deletes, a truncated table, a follower."""
    day = datetime.date(2026, 11, 15)
    pages = db.table("web.pages")
    pages.put([{"page": "/1", "day": day, "pv": 100, "price": None, "tag": "hi"}])
    pages.put([{"page": "/2", "day": day, "pv": 200}], columns=["pv"])
    pages.delete([{"page": "/3", "day": day}])
    pages.delete([{"page": "/4", "day": day}], columns=["price"])
    db.table("wide").put([wide_row(k) for k in range(4, 9)])
    db.table("seen").put([{"id": 1, "v": 4, "note": "late"}, {"id": 2, "v": 1, "note": "one"}])
    db.table("events").put([{"at": MIDNIGHT.replace(tzinfo=None), "kind": None, "n": 9}])
    empty = db.create_table("empty", kolk.Schema([kolk.Column("id", "int")], "id"))
    empty.put([{"id": 1}, {"id": 2}])
    empty.truncate()
    with pages.changelog(follower="etl") as changes:
        next(iter(changes))


def answers(db: kolk.Database) -> dict:
    """What is read of every table, as text that any version writes alike."""
    found = {}
    for table in db.tables():
        rows = [] if table.info.is_log else table.scan().to_arrow().to_pylist()
        found[table.name] = {
            "rows": sorted(map(repr, rows)),
            "changes": sorted(repr(row) for batch in table.changelog() for row in batch.to_pylist()),
            "ddl": table.describe()["ddl"],
        }
    return found


def main() -> None:
    """Make both files."""
    with tempfile.TemporaryDirectory() as scratch:
        first, second = Path(scratch, "first"), Path(scratch, "second")
        with kolk.connect(first, config=CONFIG) as db:
            fill(db)
        with kolk.connect(first, config=CONFIG) as db:
            go_on(db)
            expected = answers(db)
            shutil.copytree(first, second)
        with zipfile.ZipFile(HERE / "format1.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(path for path in second.rglob("*") if path.is_file()):
                # RocksDB's own diary, and who had the folder open, say nothing of the format.
                if path.name not in ("LOG", "LOCK") and not path.name.startswith("LOG.old"):
                    archive.write(path, path.relative_to(second))
        (HERE / "format1.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
