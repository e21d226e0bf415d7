"""Nested columns through the whole database: put, get, scan, changelog, merge engines, restart."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import kolk
from kolk.errors import InvalidRows, InvalidSchema, TooLarge

USERS = """
    CREATE TABLE users (
        id BIGINT,
        tags ARRAY<STRING>,
        attrs MAP<STRING, BIGINT>,
        pos ROW<x DOUBLE, y DOUBLE NOT NULL>,
        PRIMARY KEY (id)
    ) DISTRIBUTED INTO 3 BUCKETS
"""
ADA = {"id": 1, "tags": ["a", None], "attrs": [("k", 1), ("j", None)], "pos": {"x": None, "y": 2.0}}
BOB = {"id": 2, "tags": [], "attrs": [], "pos": None}
EVE = {"id": 3, "tags": None, "attrs": None, "pos": {"x": 1.0, "y": 1.0}}


@pytest.fixture
def users(db):
    return db.execute(USERS)


def changes(table) -> list[tuple[str, dict]]:
    rows = [row for batch in table.changelog() for row in batch.to_pylist()]
    return [(row["_change_type"], {name: row[name] for name in table.schema.names}) for row in rows]


def test_nested_values_come_back_from_lookups_scans_and_the_changelog(users):
    users.put([ADA, BOB, EVE])

    assert users.get_one(id=1) == ADA | {"attrs": dict(ADA["attrs"])}
    assert users.get([3, 2]).to_pylist() == [EVE, BOB]
    with users.scan() as scan:
        assert sorted(scan.to_arrow().to_pylist(), key=lambda row: row["id"]) == [ADA, BOB, EVE]
    assert sorted(changes(users), key=lambda change: change[1]["id"]) == [("+I", ADA), ("+I", BOB), ("+I", EVE)]
    assert users.get([1], columns=["pos"]).to_pylist() == [{"pos": ADA["pos"]}]


def test_a_put_that_changes_nothing_within_a_nested_value_emits_nothing(users):
    users.put([ADA, BOB, EVE])
    ends = users.put([ADA, BOB, EVE]).offsets

    users.put({**ADA, "attrs": dict(ADA["attrs"])})
    users.put(pa.Table.from_pylist([EVE, ADA, BOB], users.schema.arrow).slice(1))
    found = users.get([1, 2, 3])
    again = users.put(found).offsets

    assert {bucket: ends[bucket] for bucket in again} == again
    assert len(changes(users)) == 3


def test_an_update_shows_the_nested_value_before_and_after(users):
    users.put(ADA)
    users.put({**ADA, "attrs": [("j", None), ("k", 1)]})  # another order of the entries is another value

    assert changes(users) == [("+I", ADA), ("-U", ADA), ("+U", {**ADA, "attrs": [("j", None), ("k", 1)]})]


def test_a_nested_column_is_put_and_deleted_by_itself(users):
    users.put([ADA, BOB])

    users.put([{"id": 1, "tags": ["new"]}, {"id": 9, "tags": ["only"]}], columns=["tags"])
    users.delete([1], columns=["attrs"])

    assert users.get_one(id=1) == {**ADA, "tags": ["new"], "attrs": None}
    assert users.get([2]).to_pylist() == [BOB]
    assert users.get_one(id=9) == {"id": 9, "tags": ["only"], "attrs": None, "pos": None}

    users.delete([9], columns=["tags"])
    assert users.get_one(id=9) is None


@pytest.mark.parametrize("engine", ["first_row", "versioned"])
def test_the_other_merge_engines_hold_nested_values(db, engine):
    columns = [kolk.Column("id", "int"), kolk.Column("ver", "int"), kolk.Column("path", "array<row<a int, b string>>")]
    options = {"table.merge-engine.versioned.ver-column": "ver"} if engine == "versioned" else {}
    table = db.create_table("t", kolk.Schema(columns, "id"), merge_engine=engine, options=options)
    first = {"id": 1, "ver": 1, "path": [{"a": 1, "b": None}, None]}
    second = {"id": 1, "ver": 2, "path": []}

    table.put(first)
    table.put(second)
    table.put({"id": 1, "ver": 0, "path": None})

    assert table.get_one(id=1) == (first if engine == "first_row" else second)


def test_nested_values_survive_a_restart_and_a_rebuilt_kv(folder, config):
    with kolk.connect(folder, config=config) as db:
        users = db.execute(USERS)
        users.put([ADA, BOB, EVE])
        users.delete([3])
        ddl = db.table("users").info.schema
    for kv in folder.glob("tables/*/*/*/kv"):
        kv.rename(kv.with_name("old"))  # recovery reads the rows of the log and encodes them again
    for old in folder.glob("tables/*/*/*/old"):
        for file in sorted(old.rglob("*"), reverse=True):
            file.unlink()
        old.rmdir()

    with kolk.connect(folder, config=config) as db:
        users = db.table("users")
        assert users.schema == ddl
        assert users.get([1, 2, 3]).to_pylist() == [ADA, BOB]
        users.put([ADA, BOB])
        assert len(changes(users)) == 4


def test_a_log_table_holds_nested_values(db):
    events = db.execute(
        "CREATE TABLE events (at BIGINT, what MAP<STRING, ARRAY<INT NOT NULL>>) DISTRIBUTED INTO 2 BUCKETS"
    )
    rows = [{"at": 1, "what": [("a", [1, 2])]}, {"at": 2, "what": None}, {"at": 2, "what": None}]

    events.put(rows)

    assert [row for _, row in changes(events)] == rows


def test_frames_with_nested_columns_go_in_and_come_out(users):
    users.put(pd.DataFrame([{**ADA, "attrs": dict(ADA["attrs"])}, BOB]))
    users.put(pl.DataFrame(pa.Table.from_pylist([EVE], users.schema.arrow)))

    with users.scan() as scan:
        frame = scan.to_pandas().sort_values("id")
    assert frame["tags"].map(lambda tags: None if tags is None else list(tags)).tolist() == [["a", None], [], None]
    with users.scan() as scan:
        assert scan.to_polars().sort("id")["pos"].to_list() == [ADA["pos"], None, EVE["pos"]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ADA, "tags": [1]}, "'tags.item' is a string, got int64"),
        ({**ADA, "attrs": [("a", 1), ("a", 2)]}, "'attrs' has a map with the same key twice"),
        ({**ADA, "pos": {"x": 1.0, "y": None}}, "'pos.y' is NOT NULL"),
        ({**ADA, "pos": {"x": 1.0}}, "'pos' is a row<x double, y double not null>, and a value differs in y"),
    ],
)
def test_nested_values_that_do_not_fit_are_refused_with_their_place_and_nothing_is_applied(users, row, message):
    with pytest.raises(InvalidRows) as caught:
        users.put([BOB, row])

    assert message in str(caught.value)
    assert users.scan().to_arrow().num_rows == 0


def test_a_row_whose_nested_value_is_too_large_is_refused(users):
    with pytest.raises(TooLarge, match="a row takes"):
        users.put({**BOB, "tags": ["x" * 1_000_000] * 5})


def test_a_table_is_not_made_with_a_nested_key(db):
    for key in ("tags", "attrs", "pos"):
        with pytest.raises(InvalidSchema, match=f"'{key}' is a .* and cannot be a primary key"):
            db.execute(USERS.replace("KEY (id)", f"KEY ({key})"))


def test_the_most_columns_with_the_longest_names_fit_into_the_catalog(db):
    names = [f"{'x' * 195}-{place:04}" for place in range(1_000)]
    wide = kolk.Column("c", f"row<{', '.join(f'`{name}` timestamp_ltz(9) not null' for name in names)}>")
    columns = [
        wide,
        *(kolk.Column(f"{'y' * 196}{place:04}", "timestamp_ltz(9)", nullable=False) for place in range(599)),
    ]

    table = db.create_table("wide", kolk.Schema(columns))

    assert db.table("wide").schema == table.schema == kolk.Schema(columns)


def test_the_deepest_type_is_put_and_read(db):
    type, value = "int", 1
    for level in range(16):
        type, value = (f"map<int, {type}>", [(1, value)]) if level % 2 else (f"row<a {type}>", {"a": value})
    table = db.create_table("deep", kolk.Schema([kolk.Column("id", "int"), kolk.Column("c", type)], "id"))

    table.put({"id": 1, "c": value})

    assert table.get([1]).to_pylist() == [{"id": 1, "c": value}]
    assert changes(table) == [("+I", {"id": 1, "c": value})]
