"""Tables: made, listed, described, dropped, and found again."""

import pyarrow as pa
import pytest

import kolk
from kolk.errors import (
    InvalidArgument,
    InvalidName,
    InvalidSchema,
    InvalidStatement,
    TableExists,
    TableNotFound,
    TooManyTables,
)

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("x", "double")], primary_key=["id"])


def test_a_created_table_is_listed_and_found_by_name(db):
    created = db.create_table("shop.orders", SCHEMA, buckets=2)

    assert [table.name for table in db.tables()] == ["shop.orders"]
    assert db.table("shop.orders").schema == created.schema


def test_a_table_is_found_with_everything_it_was_given_after_a_reopen(folder, config):
    options = {"table.changelog.image": "WAL", "table.delete.behavior": "disable"}
    with kolk.connect(folder, config=config) as db:
        before = db.create_table("orders", SCHEMA, buckets=3, options=options).info

    with kolk.connect(folder, config=config) as db:
        assert db.table("orders").info == before
        assert db.table("default.orders").info == before


def test_a_name_can_be_taken_once(db):
    db.create_table("orders", SCHEMA)

    with pytest.raises(TableExists, match=r"already; open it with db.table.*, or say IF NOT EXISTS"):
        db.create_table("default.orders", SCHEMA)
    assert db.create_table("orders", SCHEMA, if_not_exists=True).name == "orders"


def test_an_unknown_table_is_an_error_that_lists_the_known_ones(db):
    db.create_table("orders", SCHEMA)

    with pytest.raises(TableNotFound, match="the tables are: orders"):
        db.table("order")


def test_a_dropped_table_is_gone_for_those_who_hold_it_even_if_the_name_returns(db, folder):
    old = db.create_table("orders", SCHEMA)
    old.put({"id": 1, "x": 1.0})
    db.drop_table("orders")
    new = db.create_table("orders", SCHEMA)

    with pytest.raises(TableNotFound, match="dropped"):
        old.put({"id": 2, "x": 2.0})
    assert new.scan().to_arrow().num_rows == 0
    assert new.info.id != old.info.id
    assert not (folder / "tables" / str(old.info.id)).exists()


def test_the_files_of_a_table_dropped_in_a_crash_are_removed_at_the_next_start(folder, config):
    with kolk.connect(folder, config=config) as db:
        gone = db.create_table("gone", SCHEMA).info.id
        db.create_table("orders", SCHEMA).put({"id": 1, "x": 1.0})
        db.drop_table("gone")
    orphan = folder / "tables" / str(gone) / "0" / "0"
    orphan.mkdir(parents=True)

    with kolk.connect(folder, config=config) as db:
        assert not orphan.exists()
        assert db.table("orders").get_one(id=1) is not None


def test_dropping_what_is_not_there_is_an_error_unless_it_is_allowed(db):
    with pytest.raises(TableNotFound):
        db.drop_table("nothing")
    db.drop_table("nothing", if_exists=True)


@pytest.mark.parametrize("name", ["../etc", "a/b", "", "a.b.c", "x" * 300, "-x", "__sys", "a\0b", "tab le"])
def test_a_hostile_name_is_refused(db, name):
    with pytest.raises(InvalidName):
        db.create_table(name, SCHEMA)


def test_a_table_describes_itself_in_plain_values(pages):
    pages.put({"page": "/", "pv": 1, "title": None})

    described = pages.describe()

    assert described["name"] == "web.pages"
    assert described["schema"]["primary_key"] == ["page"]
    assert set(described["offsets"]) == {"0", "1", "2", "3"}
    assert sum(bounds["end"] for bounds in described["offsets"].values()) == 1


def test_ddl_makes_shows_describes_truncates_and_drops(db):
    table = db.execute(
        "CREATE TABLE web.hits (page STRING, day DATE, pv BIGINT NOT NULL, PRIMARY KEY (page, day))"
        " DISTRIBUTED BY (page) INTO 4 BUCKETS WITH ('table.merge-engine' = 'first_row')"
    )

    assert table.info.spec.bucket_key == ("page",)
    assert db.execute("SHOW TABLES").to_pydict() == {"table": ["web.hits"]}
    assert db.execute("DESCRIBE web.hits").column("type").to_pylist() == ["string", "date", "bigint"]
    table.put([{"page": "/", "day": None, "pv": 1}][:0])
    db.execute("TRUNCATE TABLE web.hits")
    db.execute("DROP TABLE web.hits")
    db.execute("DROP TABLE IF EXISTS web.hits")
    assert db.tables() == []


def test_ddl_that_cannot_be_read_points_at_the_place(db):
    with pytest.raises(InvalidStatement, match="line 1"):
        db.execute("CREATE TABLE web.hits (page STRING,, PRIMARY KEY (page))")


def test_a_bucket_key_that_spark_hashes_otherwise_is_refused(db):
    schema = kolk.Schema([kolk.Column("at", "timestamp(9)")], primary_key=["at"])

    with pytest.raises(InvalidSchema, match="bucket"):
        db.create_table("events", schema, buckets=2)
    assert db.create_table("events", schema, buckets=1).put(
        pa.table({"at": pa.array([1], schema.columns[0].type.arrow)})
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9123", "kolk://", "kolk://host:port", "kolk://user:secret@host", "kolk://host/table"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InvalidArgument, match="address"):
        kolk.connect(url)


def test_arguments_of_the_wrong_kind_are_refused_with_what_is_right(db):
    with pytest.raises(InvalidSchema, match="from_arrow"):
        db.create_table("t", SCHEMA.arrow)
    with pytest.raises(InvalidStatement, match="text"):
        db.execute(None)
    with pytest.raises(InvalidSchema, match="merge-engine is one of"):
        db.create_table("t", SCHEMA, merge_engine=5)
    with pytest.raises(InvalidSchema, match="names no column"):
        db.create_table("t", SCHEMA, bucket_key=[])
    with pytest.raises(InvalidArgument, match="path of a folder"):
        kolk.connect(5)


def test_a_database_has_so_many_tables_and_no_more(db, monkeypatch):
    monkeypatch.setattr("kolk.engine.catalog.TABLES_MAX", 1)
    db.create_table("one", SCHEMA)

    with pytest.raises(TooManyTables, match="drop some"):
        db.create_table("two", SCHEMA, if_not_exists=True)
    assert db.create_table("one", SCHEMA, if_not_exists=True).name == "one"
