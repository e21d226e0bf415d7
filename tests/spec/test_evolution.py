"""A table's schema changes while it is in use: nothing is rewritten, and nobody is disturbed."""

import shutil

import pytest
from tests.spec.altered import PAGES, changes, filled, rows

import kolk
from kolk.errors import InvalidArgument, InvalidRows, InvalidSchema, InvalidStatement
from kolk.model.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn


@pytest.fixture
def pages(db):
    return filled(db)


# --- every change


def test_an_added_column_is_null_or_its_default_in_rows_that_were_there(pages):
    pages.add_column("clicks", "bigint", nullable=False, default=7, after="pv")
    pages.add_column(kolk.Column("note", "string"), first=True)

    assert pages.schema.names == ("note", "page", "pv", "clicks", "title")
    assert pages.get_one(page="/1") == {"note": None, "page": "/1", "pv": 1, "clicks": 7, "title": "t"}
    assert [row["clicks"] for row in pages.scan(["clicks"]).to_arrow().to_pylist()] == [7] * 4


def test_a_dropped_column_is_gone_and_one_of_its_name_is_another_one(pages):
    pages.drop_column("title")
    pages.add_column("title", "string")

    assert pages.get_one(page="/1") == {"page": "/1", "pv": 1, "title": None}


def test_a_renamed_key_finds_the_rows_that_were_there(pages):
    pages.rename_column("page", "url")

    assert pages.get_one(url="/1") == {"url": "/1", "pv": 1, "title": "t"}
    pages.put([{"url": "/1", "pv": 5, "title": None}])
    assert pages.get(["/1", "/9"]).to_pylist() == [{"url": "/1", "pv": 5, "title": None}]
    pages.delete(["/1"])
    assert pages.get_one(url="/1") is None


def test_a_widened_column_holds_what_it_could_not(pages):
    pages.widen_column("pv", "bigint")
    pages.widen_column("title", "string")
    pages.put([{"page": "/1", "pv": 2**40, "title": "more than five"}])

    assert pages.get(["/1", "/2"]).to_pylist() == [
        {"page": "/1", "pv": 2**40, "title": "more than five"},
        {"page": "/2", "pv": 2, "title": "t"},
    ]


def test_moving_changes_the_order_and_nothing_else(pages):
    pages.move_column("pv", first=True)
    pages.move_column("pv", after="title")

    assert pages.schema.names == ("page", "title", "pv")
    assert pages.get_one(page="/1") == {"page": "/1", "title": "t", "pv": 1}


def test_a_column_may_be_null_from_now_on(db):
    table = db.execute("CREATE TABLE t (k INT, a INT NOT NULL, PRIMARY KEY (k))")
    with pytest.raises(InvalidRows, match="NOT NULL"):
        table.put({"k": 1, "a": None})

    table.drop_not_null("a")

    table.put({"k": 1, "a": None})
    assert table.get_one(k=1) == {"k": 1, "a": None}


def test_several_changes_are_made_together_or_not_at_all(pages):
    with pytest.raises(InvalidSchema, match="primary key"):
        pages.alter([AddColumn(kolk.Column("x", "int")), DropColumn("page")])
    assert pages.refresh() == PAGES

    pages.alter([RenameColumn("pv", "views"), WidenColumn("views", "bigint"), DropColumn("title")])
    assert (pages.schema.id, pages.schema.names) == (2, ("page", "views"))


def test_all_of_it_is_there_after_a_restart_and_without_the_kv(folder, config):
    with kolk.connect(folder, config=config) as db:
        table = db.create_table("t", PAGES, buckets=2)
        table.put([{"page": "/", "pv": 1, "title": "a"}])
        table.alter([AddColumn(kolk.Column("x", "int", default=3)), RenameColumn("page", "url")])
        table.put([{"url": "/b", "pv": 2, "title": None, "x": None}])
        table.drop_column("title")
        table.put([{"url": "/c", "pv": 3}])
        expected, schema, log = rows(table), table.schema, changes(table)

    for lose_kv in (False, True):
        if lose_kv:
            for kv in folder.glob("tables/*/*/*/kv"):
                shutil.rmtree(kv)
        with kolk.connect(folder, config=config) as db:
            assert db.table("t").schema == schema
            assert rows(db.table("t")) == expected
            assert changes(db.table("t")) == log


def test_a_log_table_evolves_too(db):
    events = db.create_table("events", kolk.Schema([kolk.Column("n", "int"), kolk.Column("x", "float")]), buckets=2)
    old = db.table("events")
    events.put([{"n": 1, "x": 0.5}])
    events.alter([WidenColumn("x", "double"), AddColumn(kolk.Column("kind", "string", default="none"))])
    events.put([{"n": 2, "x": 0.1}])
    old.put([{"n": 3, "x": 1.5}])

    latest = sorted(changes(events, schema="latest"), key=lambda row: row["n"])

    assert [(row["n"], row["x"], row["kind"]) for row in latest] == [
        (1, 0.5, "none"),
        (2, 0.1, "none"),
        (3, 1.5, "none"),
    ]


def test_a_table_of_which_only_the_key_is_left_lives_on(db):
    table = db.execute("CREATE TABLE t (k INT, a INT, PRIMARY KEY (k))")
    table.put([{"k": 1, "a": 1}])

    table.drop_column("a")

    table.put([{"k": 1}, {"k": 2}])
    assert rows(table) == [{"k": 1}, {"k": 2}]
    assert [row["_change_type"] for row in changes(table)] == ["+I", "+I"]


# --- defaults


def test_a_default_fills_what_a_put_leaves_out_and_nothing_that_it_says(db):
    table = db.execute("CREATE TABLE t (k INT, a INT DEFAULT 5, b STRING NOT NULL DEFAULT 'x', PRIMARY KEY (k))")

    table.put([{"k": 1}])
    table.put([{"k": 2, "a": None, "b": "y"}])
    table.put([{"k": 3, "a": 9}], columns=["a"])
    table.put([{"k": 2, "a": 9}], columns=["a"])

    assert rows(table) == [
        {"k": 1, "a": 5, "b": "x"},
        {"k": 2, "a": 9, "b": "y"},
        {"k": 3, "a": 9, "b": "x"},
    ]


def test_a_column_without_a_default_must_still_be_given(pages):
    with pytest.raises(InvalidRows, match=r"no column 'title'"):
        pages.put([{"page": "/", "pv": 1}])


def test_a_put_of_what_is_so_already_stays_silent_after_an_alter(pages):
    pages.alter([AddColumn(kolk.Column("clicks", "int", default=0)), WidenColumn("pv", "bigint")])
    before = len(changes(pages))

    pages.put([{"page": "/1", "pv": 1, "title": "t"}])
    pages.put([{"page": "/2", "pv": 2}], columns=["pv"])

    assert len(changes(pages)) == before


# --- the changelog


def test_a_batch_of_the_changelog_is_in_the_version_that_it_was_written_with(pages):
    pages.alter([RenameColumn("pv", "views"), DropColumn("title")])
    pages.put([{"page": "/1", "views": 50}])

    with pages.changelog() as changelog:
        found = [(changelog.schema.id, batch.schema.names[4:], batch.num_rows) for batch in changelog]

    assert {(id, tuple(names)) for id, names, _ in found} == {(1, ("page", "pv", "title")), (2, ("page", "views"))}
    assert sum(count for _, _, count in found) == 6


def test_the_whole_changelog_can_be_seen_in_the_newest_version(pages):
    pages.alter([RenameColumn("pv", "views"), DropColumn("title"), AddColumn(kolk.Column("x", "int", default=1))])
    pages.put([{"page": "/1", "views": 50}])

    found = list(pages.changelog(schema="latest"))

    assert {tuple(batch.schema.names[4:]) for batch in found} == {("page", "views", "x")}
    assert {row["x"] for batch in found for row in batch.to_pylist()} == {1}
    with pytest.raises(InvalidArgument, match="'latest'"):
        pages.changelog(schema="oldest")


def test_latest_means_as_of_the_opening(pages):
    pages.add_column("x", "int")
    changelog = pages.changelog(follow=True, schema="latest", stop=None)
    pages.alter([AddColumn(kolk.Column("y", "int")), DropColumn("title")])
    pages.put([{"page": "/1", "pv": 50, "x": 1, "y": 2}])

    found = []
    for batch in changelog:
        found += batch.to_pylist()
        if len(found) == 6:
            changelog.close()

    assert {tuple(row)[4:] for row in found} == {("page", "pv", "title", "x")}
    assert [row["title"] for row in found if row["_change_type"] == "+U"] == [None]


def test_a_follower_goes_on_over_an_alter(pages):
    with pages.changelog(follower="etl") as changelog:
        seen = sum(batch.num_rows for batch in changelog)
    pages.drop_column("title")
    pages.put([{"page": "/9", "pv": 9}])

    with pages.changelog(follower="etl") as changelog:
        rest = [row for batch in changelog for row in batch.to_pylist()]

    assert seen == 4
    assert [(row["page"], "title" in row) for row in rest] == [("/9", False)]


def test_truncating_after_an_alter_shows_the_rows_as_they_are_now(pages):
    pages.add_column("x", "int", default=1)

    pages.truncate()

    gone = [row for row in changes(pages) if row["_change_type"] == "-D"]
    assert {row["x"] for row in gone} == {1}
    assert rows(pages) == []


# --- options


def test_options_that_may_change_are_set_on_a_living_table(db):
    events = db.create_table("events", kolk.Schema([kolk.Column("n", "int")]))

    assert events.set_options({"table.log.ttl": "7d"}) == {"table.log.ttl": "7d"}
    assert events.set_options({"table.log.max-bytes": 1000, "table.log.ttl": "-1"}) == {"table.log.max-bytes": "1000"}

    assert db.table("events").describe()["options"] == {"table.log.max-bytes": "1000"}
    assert events.schema.id == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table.merge-engine": "first_row"}, "decided when a table is made.*table.log.ttl"),
        ({"bucket.num": "9"}, "cannot be set later"),
        ({"nonsense": "1"}, "unknown table option"),
        ({}, "at least one option"),
    ],
)
def test_options_that_may_not_change_say_so(pages, options, message):
    with pytest.raises(InvalidSchema, match=message):
        pages.set_options(options)


# --- DDL


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("ADD COLUMN x BIGINT NOT NULL DEFAULT -5 AFTER page", ("page", "x", "pv", "title")),
        ("ADD COLUMN IF NOT EXISTS PV BIGINT", ("page", "pv", "title")),
        ("ADD COLUMNS (x INT DEFAULT 1, y DATE FIRST)", ("y", "page", "pv", "title", "x")),
        ("DROP COLUMN title", ("page", "pv")),
        ("DROP COLUMN IF EXISTS nothing", ("page", "pv", "title")),
        ("DROP COLUMNS (pv, title)", ("page",)),
        ("RENAME COLUMN page TO url", ("url", "pv", "title")),
        ("ALTER COLUMN pv TYPE BIGINT", ("page", "pv", "title")),
        ("ALTER COLUMN pv SET DATA TYPE BIGINT", ("page", "pv", "title")),
        ("ALTER COLUMN title FIRST", ("title", "page", "pv")),
        ("ALTER COLUMN page AFTER pv", ("pv", "page", "title")),
    ],
)
def test_ddl_alters_a_table(db, pages, statement, columns):
    table = db.execute(f"ALTER TABLE web.pages {statement}")

    assert table.schema.names == columns
    assert len(rows(table)) == 4


def test_ddl_that_cannot_be_done_is_refused_as_the_call_is(db, pages):
    with pytest.raises(InvalidSchema, match="primary key"):
        db.execute("ALTER TABLE web.pages DROP COLUMN page")
    with pytest.raises(InvalidStatement, match="cannot become NOT NULL"):
        db.execute("ALTER TABLE web.pages ALTER COLUMN pv SET NOT NULL")
    with pytest.raises(InvalidSchema, match="cannot be set later"):
        db.execute("ALTER TABLE web.pages SET ('bucket.num' = '4')")


def test_a_table_shows_its_defaults_and_is_made_again_from_its_ddl(db):
    table = db.execute("CREATE TABLE t (k INT, a DECIMAL(4, 1) DEFAULT 1.5, b STRING DEFAULT 'it''s', PRIMARY KEY (k))")
    text = table.describe()["ddl"]
    db.drop_table("t")

    again = db.execute(text)

    assert "a DECIMAL(4, 1) DEFAULT 1.5" in text
    assert again.schema == table.schema
    assert db.execute("DESCRIBE t").column("default").to_pylist() == [None, "1.5", "it's"]
