"""Scans with a predicate: the rows that it selects, of the same moment, and no others."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import kolk
from kolk.errors import Closed, InvalidArgument
from kolk.model.predicate import Predicate
from kolk.model.scan import ScanRequest

embedded_only = pytest.mark.parametrize("form", ["embedded"], indirect=True)


def rows(n: int) -> list[dict]:
    return [{"page": f"/{i:05}", "pv": i, "title": None if i % 10 else f"page {i}"} for i in range(n)]


def found(scan: kolk.Scan) -> list[str]:
    return sorted(scan.to_arrow().column("page").to_pylist())


def test_a_scan_shows_the_rows_that_its_predicate_selects(pages):
    pages.put(rows(1000))

    assert found(pages.scan(where="pv >= 10 AND pv < 13")) == ["/00010", "/00011", "/00012"]
    assert found(pages.scan(where="page IN ('/00001', '/00002', '/none')")) == ["/00001", "/00002"]
    assert pages.scan(where="title IS NULL").to_arrow().num_rows == 900
    assert pages.scan(where="NOT title = 'page 0'").to_arrow().num_rows == 99
    assert pages.scan(where="TRUE").to_arrow().num_rows == 1000
    assert pages.scan(where="FALSE").to_arrow().num_rows == 0
    assert pages.scan(where="pv > 1000").to_arrow() == pages.schema.arrow.empty_table()


def test_a_dict_names_what_columns_equal(pages):
    pages.put(rows(100))

    assert found(pages.scan(where={"pv": 7})) == ["/00007"]
    assert found(pages.scan(where={"pv": [7, 8, 200], "title": None})) == ["/00007", "/00008"]
    assert found(pages.scan(where={"title": ["page 10", None], "pv": {10, 11, 20}})) == ["/00010", "/00011"]
    assert found(pages.scan(where={"pv": []})) == []
    assert len(found(pages.scan(where={}))) == 100


def test_the_columns_of_the_predicate_need_not_be_shown(pages):
    pages.put(rows(100))

    with pages.scan(columns=["title"], where="pv IN (10, 20)") as scan:
        table = scan.to_arrow()

    assert table.schema == pa.schema([pages.schema.arrow.field("title")])
    assert sorted(table.column("title").to_pylist()) == ["page 10", "page 20"]


def test_the_limit_counts_the_rows_that_are_selected(pages):
    pages.put(rows(1000))

    assert pages.scan(limit=7, where="pv >= 900").to_arrow().num_rows == 7
    assert min(pages.scan(["pv"], 7, "pv >= 900").to_arrow().column("pv").to_pylist()) >= 900
    assert pages.scan(limit=500, where="pv >= 900").to_arrow().num_rows == 100
    assert pages.scan(limit=0, where="pv >= 900").to_arrow().num_rows == 0


def test_a_scan_with_a_predicate_sees_no_write_made_after_it_opened(pages):
    pages.put(rows(100))
    with pages.scan(where="pv < 10") as scan:
        pages.put([{"page": "/00050", "pv": 0, "title": None}])
        pages.delete(["/00000"])

        assert found(scan) == [f"/{i:05}" for i in range(10)]


def test_many_pages_without_a_row_that_is_wanted_are_passed_over(bench):
    db = bench(scan_page_rows=2).db
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int")], "id"), buckets=2)
    table.put([{"id": n, "n": n} for n in range(2000)])

    found = table.scan(where="n = 1999 OR n = 3").to_arrow()

    assert sorted(found["id"].to_pylist()) == [3, 1999]


def test_a_scan_that_finds_nothing_can_be_closed_before_its_end(bench):
    db = bench(scan_page_rows=1).db
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int")], "id"))
    table.put([{"id": n, "n": n} for n in range(1000)])
    scan = table.scan(where="n < 0")

    first = scan._pages.next()
    scan.close()

    assert first.batch is None
    with pytest.raises(Closed):
        scan.to_arrow()


@pytest.mark.parametrize("form", ["network"], indirect=True)
@pytest.mark.parametrize("text", ["nope = 1", "(" * 100_000, "pv IN (" + "1," * 100_000, "pv = 1" + " " * 10**6])
def test_a_server_refuses_text_that_no_client_would_send(pages, text):
    with pytest.raises(InvalidArgument, match="the predicate"):
        pages._service.open_scan(pages.info.id, ScanRequest(where=text))


@embedded_only  # over the network it is read anew
def test_a_predicate_of_another_table_is_refused(db, pages):
    other = Predicate.parse("pv = 1", kolk.Schema([kolk.Column("pv", "int")]))

    with pytest.raises(InvalidArgument, match="get the table anew"):
        pages._service.open_scan(pages.info.id, ScanRequest(where=other))


def test_every_type_can_be_compared(db):
    values = {
        "flag": (True, "flag", "NOT flag"),
        "tiny": (-7, "tiny = -7", "tiny < -1000"),
        "price": (Decimal("9.99"), "price = '9.990'", "price > 9.995"),
        "ratio": (math.nan, "ratio > 1e300", "ratio < 'NaN'"),
        "name": ("it's", "name = 'it''s'", "name > 'z'"),
        "hash": (b"\x00\xff", "hash = X'00ff'", "hash < X'00'"),
        "day": (date(2026, 11, 15), "day = DATE '2026-11-15'", "day <> '2026-11-15'"),
        "at": (datetime(2026, 11, 15, 12), "at >= '2026-11-15'", "at < TIMESTAMP '2026-11-15 12:00:00'"),  # noqa: DTZ001
        "seen": (
            datetime(2026, 11, 15, 12, tzinfo=UTC),
            "seen = TIMESTAMP_LTZ '2026-11-15 13:00:00+01:00'",
            "seen > '2026-11-15T12:00:00Z'",
        ),
        "tags": (["a"], "tags IS NOT NULL", "tags IS NULL"),
    }
    kinds = ["boolean", "tinyint", "decimal(5, 2)", "double", "string", "binary(2)", "date", "timestamp"]
    columns = [
        kolk.Column(name, kind) for name, kind in zip(values, [*kinds, "timestamp_ltz", "array<string>"], strict=True)
    ]
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), *columns], "id"))
    table.put([{"id": 1} | {name: value for name, (value, _, _) in values.items()}, {"id": 2} | dict.fromkeys(values)])

    for name, (value, true, false) in values.items():
        assert table.scan(["id"], where=true).to_arrow().to_pylist() == [{"id": 1}], true
        assert table.scan(["id"], where=f"{name} IS NOT NULL AND {false}").to_arrow().num_rows == 0, false
        if name != "tags":
            assert table.scan(["id"], where={name: value}).to_arrow().to_pylist() == [{"id": 1}]
        assert table.scan(["id"], where={name: None}).to_arrow().to_pylist() == [{"id": 2}]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("pv >", "line 1, column 5: found the end of the text"),
        ("nope = 1", "there is no column 'nope'"),
        ("title = 5", "of type string"),
        ({"nope": 1}, "there is no column 'nope'"),
        ({"pv": "7"}, "'pv'"),
        ({"pv": 1.5}, "'pv'"),
        ({"pv": 2**70}, "'pv'"),
        ({"pv": list(range(10_001))}, "at most 10,000 values"),
        (7, "where is text or a dict"),
    ],
)
def test_a_predicate_that_makes_no_sense_is_refused_at_once(pages, where, message):
    with pytest.raises(InvalidArgument, match=message):
        pages.scan(where=where)


def test_a_dict_asks_of_nested_columns_only_whether_they_are_null(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("tags", "array<string>")], "id"))

    with pytest.raises(InvalidArgument, match="only ask whether it is null"):
        table.scan(where={"tags": ["a"]})
