"""Handles of different ages use one table at once: each in the schema that it was opened with."""

import threading
from dataclasses import replace

import pytest
from tests.spec.altered import PAGES, changes, filled, rows

import kolk
from kolk.client.table import Table
from kolk.errors import SchemaChanged, TableNotFound
from kolk.model.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn


@pytest.fixture
def pages(db):
    return filled(db)


# --- old handles


def test_an_old_handle_goes_on_in_the_schema_that_it_knows(db, pages):
    old = db.table("web.pages")
    pages.alter(
        [
            RenameColumn("page", "url"),
            WidenColumn("pv", "bigint"),
            AddColumn(kolk.Column("clicks", "int", nullable=False, default=3), first=True),
        ]
    )

    old.put([{"page": "/1", "pv": 10, "title": "new"}])
    old.put([{"page": "/2", "pv": 20}], columns=["pv"])
    old.delete(["/3"])

    assert pages.get_one(url="/1") == {"clicks": 3, "url": "/1", "pv": 10, "title": "new"}
    assert old.get_one(page="/2") == {"page": "/2", "pv": 20, "title": "t"}
    assert rows(old) == [
        {"page": "/0", "pv": 0, "title": "t"},
        {"page": "/1", "pv": 10, "title": "new"},
        {"page": "/2", "pv": 20, "title": "t"},
    ]
    assert old.scan(["title", "page"]).to_arrow().schema == PAGES.arrow_of(["title", "page"])


def test_what_an_old_handle_writes_to_a_dropped_column_is_passed_over(db, pages):
    old = db.table("web.pages")
    pages.drop_column("title")

    old.put([{"page": "/1", "pv": 1, "title": "gone"}])
    old.put([{"page": "/9", "title": "gone"}], columns=["title"])

    assert pages.get(["/1", "/9"]).to_pylist() == [{"page": "/1", "pv": 1}, {"page": "/9", "pv": None}]
    assert old.get_one(page="/1") == {"page": "/1", "pv": 1, "title": None}


def test_an_old_handle_is_told_when_a_value_does_not_fit_and_can_be_refreshed(db, pages):
    old = db.table("web.pages")
    pages.widen_column("pv", "bigint")
    pages.put([{"page": "/1", "pv": 2**40, "title": None}])

    assert old.get_one(page="/2") == {"page": "/2", "pv": 2, "title": "t"}
    for read in (lambda: old.get_one(page="/1"), lambda: old.scan().to_arrow(), lambda: old.get(["/1", "/2"])):
        with pytest.raises(SchemaChanged, match=r"'pv' was widened.*refresh"):
            read()
    assert old.scan(["page"]).to_arrow().num_rows == 4

    assert old.refresh() == pages.schema
    assert old.get_one(page="/1") == {"page": "/1", "pv": 2**40, "title": None}


def test_an_old_handle_of_a_renamed_prefix_finds_it(db):
    schema = kolk.Schema([kolk.Column("user", "string"), kolk.Column("at", "int")], primary_key=["user", "at"])
    table = db.create_table("visits", schema, buckets=4, bucket_key=["user"])
    old = db.table("visits")
    table.put([{"user": "ada", "at": n} for n in range(3)])
    table.rename_column("user", "who")

    assert old.prefix(user="ada").to_pylist() == [{"user": "ada", "at": n} for n in range(3)]
    assert table.prefix(who="ada").num_rows == 3


def test_a_put_that_was_retried_over_an_alter_is_applied_once(db, pages):
    old = db.table("web.pages")
    first = old.put([{"page": "/1", "pv": 5, "title": None}])
    pages.alter([DropColumn("title"), RenameColumn("page", "url")])
    pages.put([{"url": "/1", "pv": 6}])

    again = old.put([{"page": "/1", "pv": 5, "title": None}], tag=first.tag)

    assert again.offsets == first.offsets
    assert pages.get_one(url="/1") == {"url": "/1", "pv": 6}


def test_a_handle_of_a_version_that_never_was_is_told_to_refresh(db, pages):
    newer = replace(pages.info, spec=replace(pages.info.spec, schema=replace(PAGES, id=9)))
    strange = Table(pages._link, newer)

    for use in (
        lambda: strange.get_one(page="/1"),
        strange.scan,
        lambda: strange.put({"page": "", "pv": 1, "title": ""}),
    ):
        with pytest.raises(SchemaChanged, match=r"version 9 of the schema is not known here.*refresh"):
            use()
    assert strange.refresh() == PAGES


def test_a_handle_of_a_dropped_table_is_not_refreshed_to_another_one(db, pages):
    db.drop_table("web.pages")
    db.create_table("web.pages", PAGES)

    with pytest.raises(TableNotFound, match="dropped"):
        pages.refresh()


# --- several who alter


def test_an_alter_through_an_old_handle_is_refused_unless_it_is_a_retry(db, pages):
    other, third = db.table("web.pages"), db.table("web.pages")
    pages.add_column("x", "int")

    with pytest.raises(SchemaChanged, match=r"at version 2.*made for version 1.*refresh"):
        other.add_column("y", "int")
    assert third.add_column("x", "int") == pages.schema

    other.refresh()
    other.add_column("y", "int")
    assert pages.refresh().names == ("page", "pv", "title", "x", "y")


def test_an_alter_that_is_retried_after_later_ones_is_still_recognised(db, pages):
    lost = db.table("web.pages")
    pages.add_column("x", "int")
    pages.add_column("y", "int")

    assert lost.add_column("x", "int") == pages.schema


def test_of_concurrent_alters_one_wins_at_a_time(db, pages):
    outcomes = []

    def add(name):
        table = db.table("web.pages")
        while True:
            try:
                table.add_column(name, "int")
                outcomes.append(name)
                return
            except SchemaChanged:
                table.refresh()

    threads = [threading.Thread(target=add, args=(f"c{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == [f"c{n}" for n in range(6)]
    assert pages.refresh().id == 7
    assert set(pages.schema.names) == {"page", "pv", "title", *outcomes}


def test_puts_and_reads_go_on_while_the_table_is_altered(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int")], "k"), buckets=2)
    failures, stop = [], threading.Event()

    def write(start):
        handle, number = db.table("t"), start
        try:
            while not stop.is_set():
                handle.put([{"k": number, "a": number}])
                assert handle.get_one(k=number) == {"k": number, "a": number}
                number += 3
        except BaseException as error:  # noqa: BLE001 - shown by the test, which would not see it in its thread
            failures.append(error)
        counts.append((start, number))

    counts = []
    threads = [threading.Thread(target=write, args=(start,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for n in range(12):
        table.alter([AddColumn(kolk.Column(f"c{n}", "int", default=n), first=True)])
        if n % 3 == 2:
            table.alter([DropColumn(f"c{n}"), RenameColumn(f"c{n - 1}", f"d{n}")])
    stop.set()
    for thread in threads:
        thread.join()

    assert not failures
    written = {number for start, end in counts for number in range(start, end, 3)}
    found = rows(table)
    assert {row["k"] for row in found} == written
    assert all(row["a"] == row["k"] and row["c0"] == 0 for row in found)
    assert len(changes(table, schema="latest")) == len(written)


def test_no_frame_of_an_older_version_is_written_after_an_alter_returned(db, pages):
    old = db.table("web.pages")
    pages.add_column("x", "int")
    ends = pages.put([{"page": f"/{n}", "pv": 0, "title": None, "x": 1} for n in range(9)]).offsets

    old.put([{"page": f"/{n}", "pv": n + 1, "title": None} for n in range(9)])

    later = list(pages.changelog(start=ends))
    assert later
    assert {tuple(batch.schema.names[4:]) for batch in later} == {("page", "pv", "title", "x")}


# --- beside predicates and partitions


def test_a_predicate_speaks_the_schema_of_its_handle(db, pages):
    old = db.table("web.pages")
    pages.alter([RenameColumn("pv", "views"), WidenColumn("views", "bigint"), DropColumn("title")])
    pages.put([{"page": "/9", "views": 9}])

    assert sorted(old.scan(where="pv >= 3 and title is null").to_arrow().column("page").to_pylist()) == ["/3", "/9"]
    assert pages.scan(["page"], where="views = 9").to_arrow().to_pylist() == [{"page": "/9"}]


def test_a_table_in_partitions_evolves_under_handles_of_all_ages(db):
    table = db.execute(
        "CREATE TABLE t (day STRING NOT NULL, k INT, a INT, PRIMARY KEY (day, k)) PARTITIONED BY (day)"
        " DISTRIBUTED BY (k) INTO 2 BUCKETS"
    )
    old = db.table("t")
    table.put([{"day": "mon", "k": n, "a": n} for n in range(4)])

    table.alter([RenameColumn("k", "key"), AddColumn(kolk.Column("b", "int", default=1), first=True)])
    old.put([{"day": "tue", "k": 1, "a": 1}])
    table.put([{"day": "mon", "key": 1, "a": 10}])

    assert old.get([("mon", 1), ("tue", 1)]).to_pylist() == [
        {"day": "mon", "k": 1, "a": 10},
        {"day": "tue", "k": 1, "a": 1},
    ]
    assert table.scan(where="day = 'tue'").to_arrow().to_pylist() == [{"b": 1, "day": "tue", "key": 1, "a": 1}]
    assert {row["b"] for row in changes(table, schema="latest")} == {1}
