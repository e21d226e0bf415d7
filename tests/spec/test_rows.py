"""Rows: put, looked up, deleted, by everybody's kind of data; and bad input."""

import datetime
import decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import kolk
from kolk.errors import DeletesDisabled, InvalidArgument, InvalidRows, TooLarge

SHOUTED = pa.schema([pa.field("page", pa.string(), metadata={"a": "b"}), ("pv", pa.int64()), ("title", pa.string())])
EVERY_TYPE = {
    "boolean": True,
    "tinyint": -128,
    "smallint": 32767,
    "int": -5,
    "bigint": 2**62,
    "float": 1.5,
    "double": -2.25,
    "decimal(38, 10)": decimal.Decimal("123.4567890123"),
    "char(3)": "äöü",
    "string": "text",
    "binary(2)": b"\x00\xff",
    "bytes": b"",
    "date": datetime.date(1969, 12, 31),
    "time": datetime.time(23, 59, 59, 999999),
    "timestamp(3)": datetime.datetime(2026, 11, 15, 12, 0, 0, 5000),  # noqa: DTZ001 - a timestamp without a zone
    "timestamp_ltz": datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC),
}


def test_what_was_put_is_read_back_at_once(pages):
    pages.put([{"page": "/", "pv": 1, "title": "home"}, {"page": "/a", "pv": 2, "title": None}])

    assert pages.get_one(page="/") == {"page": "/", "pv": 1, "title": "home"}
    assert pages.get_one(page="/x") is None
    assert pages.get(["/a", "/x", "/"]).column("pv").to_pylist() == [2, 1]


def test_every_scalar_type_comes_back_as_it_was(db):
    columns = [kolk.Column(f"c{place}", type) for place, type in enumerate(EVERY_TYPE)]
    table = db.create_table("all_types", kolk.Schema([kolk.Column("id", "int"), *columns], primary_key=["id"]))
    full = {"id": 1, **{f"c{place}": value for place, value in enumerate(EVERY_TYPE.values())}}
    empty = {"id": 2, **{f"c{place}": None for place in range(len(columns))}}

    table.put([full, empty])

    assert table.get_one(id=1) == full
    assert table.get_one(id=2) == empty
    assert table.scan().to_arrow().to_pylist() == [full, empty]


@pytest.mark.parametrize("type", [type for type in EVERY_TYPE if type not in ("float", "double")])
def test_every_type_but_floats_can_be_a_primary_key(db, type):
    table = db.create_table("keyed", kolk.Schema([kolk.Column("k", type), kolk.Column("v", "int")], primary_key="k"))

    table.put({"k": EVERY_TYPE[type], "v": 1})
    table.put({"k": EVERY_TYPE[type], "v": 2})

    assert table.get_one(k=EVERY_TYPE[type])["v"] == 2


def test_rows_come_from_arrow_pandas_polars_and_dicts_alike(pages):
    rows = {"page": ["/"], "pv": [1], "title": ["x"]}
    sources = [
        pa.table(rows),
        pa.record_batch(rows),
        pd.DataFrame(rows),
        pl.DataFrame(rows),
        [{"page": "/", "pv": 1, "title": "x"}],
        {"page": "/", "pv": 1, "title": "x"},
        pa.table(rows).cast(pa.schema([("page", pa.large_string()), ("pv", pa.int16()), ("title", pa.string_view())])),
        pa.table({**rows, "title": pa.array(["x"]).dictionary_encode()}),
        pl.DataFrame(rows).with_columns(pl.col("title").cast(pl.Categorical)),
        pa.table(rows).to_batches()[0].to_struct_array(),
        pa.table({**rows, "title": pa.array(["x"], pa.string())}).cast(SHOUTED),
    ]

    ends = [sum(pages.put(source).offsets.values()) for source in sources]

    assert ends == [1] * len(sources)  # the first inserts, the others change nothing
    assert pages.get_one(page="/") == {"page": "/", "pv": 1, "title": "x"}


def test_the_last_row_of_a_key_in_one_put_stands(pages):
    pages.put([{"page": "/", "pv": value, "title": None} for value in range(5)])

    assert pages.get_one(page="/")["pv"] == 4


def test_deleted_rows_are_gone_and_deleting_nothing_is_fine(pages):
    pages.put([{"page": f"/{i}", "pv": i, "title": None} for i in range(4)])

    pages.delete(["/0", "/1", "/nothing"])
    pages.delete(pa.table({"page": ["/2"]}))

    assert pages.scan().to_arrow().column("page").to_pylist() == ["/3"]


def test_a_partial_put_and_delete_touch_only_their_columns(pages):
    pages.put({"page": "/", "pv": 1, "title": "home"})

    pages.put({"page": "/", "pv": 2}, columns=["pv"])
    assert pages.get_one(page="/") == {"page": "/", "pv": 2, "title": "home"}

    pages.delete(["/"], columns=["title"])
    assert pages.get_one(page="/") == {"page": "/", "pv": 2, "title": None}

    pages.delete(["/"], columns=["pv"])
    assert pages.get_one(page="/") is None


def test_a_partial_put_ignores_columns_it_does_not_name(pages):
    pages.put({"page": "/", "pv": 1, "title": "home"})

    pages.put({"page": "/", "pv": 5, "title": "ignored"}, columns=["page", "pv"])

    assert pages.get_one(page="/")["title"] == "home"


def test_naming_every_column_is_a_whole_row_put(pages):
    pages.put({"page": "/", "pv": 1, "title": None}, columns=["page", "pv", "title"])

    assert pages.get_one(page="/")["pv"] == 1


def test_overwriting_bypasses_the_merge_engine(db):
    schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("v", "int")], primary_key=["id"])
    table = db.create_table("firsts", schema, merge_engine="first_row")
    table.put({"id": 1, "v": 1})
    table.put({"id": 1, "v": 2})
    assert table.get_one(id=1)["v"] == 1

    table.put({"id": 1, "v": 3}, mode="overwrite")
    assert table.get_one(id=1)["v"] == 3

    table.delete([1])
    assert table.get_one(id=1) is not None
    table.delete([1], mode="overwrite")
    assert table.get_one(id=1) is None


def test_lookups_can_name_columns(pages):
    pages.put({"page": "/", "pv": 1, "title": "home"})

    assert pages.get(["/"], columns=["title"]).to_pylist() == [{"title": "home"}]


def test_a_thousand_keys_over_several_buckets_come_back_in_the_order_asked(pages):
    pages.put([{"page": f"/{i}", "pv": i, "title": None} for i in range(1000)])
    wanted = [f"/{(i * 7) % 1200}" for i in range(1000)]

    found = pages.get(wanted)

    assert found.column("page").to_pylist() == [page for page in wanted if int(page[1:]) < 1000]


def test_a_prefix_finds_the_rows_of_the_first_key_columns_in_key_order(db):
    schema = kolk.Schema([kolk.Column("user", "string"), kolk.Column("n", "int")], primary_key=["user", "n"])
    table = db.create_table("events", schema, buckets=4, bucket_key=["user"])
    table.put([{"user": user, "n": n} for user in ["a", "ab", "a\0", ""] for n in [3, -1, 2]])

    assert table.prefix(user="a").column("n").to_pylist() == [-1, 2, 3]
    assert table.prefix(user="").num_rows == 3
    assert table.prefix(user="none").num_rows == 0


def test_a_prefix_must_lie_in_one_bucket_and_be_a_prefix(db):
    schema = kolk.Schema([kolk.Column("user", "string"), kolk.Column("n", "int")], primary_key=["user", "n"])
    spread = db.create_table("spread", schema, buckets=4)
    alone = db.create_table("alone", schema, buckets=1)
    alone.put({"user": "a", "n": 1})

    with pytest.raises(InvalidArgument, match="bucket key"):
        spread.prefix(user="a")
    with pytest.raises(InvalidArgument, match="first columns of the key"):
        alone.prefix(n=1)
    with pytest.raises(InvalidArgument, match="not all of it"):
        alone.prefix(user="a", n=1)
    assert alone.prefix(user="a").num_rows == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"page": None, "pv": 1, "title": None}, "'page' is NOT NULL"),
        ({"pv": 1, "title": None}, "no column 'page'"),
        ({"page": "/", "pv": 1}, "no column 'title'"),
        ({"page": "/", "pv": 1, "title": None, "extra": 1}, "no column 'extra'; the columns are"),
        ({"page": "/", "pv": "1", "title": None}, "'pv' is a bigint"),
        ({"page": "/", "pv": 2**63, "title": None}, "'pv' is a bigint"),
        ({"page": "/", "pv": 1.5, "title": None}, "'pv' is a bigint"),
        ({"page": "/", "pv": True, "title": None}, "'pv' is a bigint, got bool"),
        ({"page": "/", "pv": 2**70, "title": None}, "'pv' is a bigint"),
        ([{"page": "/", "pv": 1, "title": "x"}, {"page": "/", "pv": "y", "title": "x"}], "'pv' is a bigint"),
        ([{"page": "/", "pv": 1, "title": "x"}, {"page": "/b", "pv": 1}], "row 1 and row 0 differ in title"),
        (pa.table({"page": ["/"], "pv": [1], "title": [["nested"]]}), "'title' is a string"),
        (pa.table({"page": ["/"]}).append_column("page", [["/"]]), "twice"),
        ("nonsense", "cannot read rows from a str"),
        (["/"], "a row is a dict"),
        (pa.table({"page": ["/"], "pv": ["1"], "title": ["x"]}), "'pv' is a bigint, got string"),
        (pa.table({"page": [1], "pv": [1], "title": ["x"]}), "'page' is a string, got int64"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_column_named_and_nothing_is_applied(pages, rows, message):
    with pytest.raises(InvalidRows, match=message):
        pages.put(rows)
    assert pages.scan().to_arrow().num_rows == 0


def test_one_bad_row_refuses_the_whole_put_in_every_bucket(pages):
    rows = [{"page": f"/{i}", "pv": i, "title": None} for i in range(100)] + [{"page": None, "pv": 1, "title": None}]

    with pytest.raises(InvalidRows):
        pages.put(rows)

    assert sum(end for _, end in pages._service.bounds(pages.info.id).values()) == 0


def test_invalid_text_is_refused_before_it_is_stored(pages):
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    rows = pa.record_batch([pa.array(["/"]), pa.array([1]), bad], names=["page", "pv", "title"])

    with pytest.raises(InvalidRows, match="valid Arrow"):
        pages.put(rows)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("char(2)", "abc"),
        ("timestamp(1)", datetime.datetime(2026, 1, 1, 0, 0, 0, 50_000)),  # noqa: DTZ001 - as above
        ("time(0)", datetime.time(1, 2, 3, 5)),
        ("decimal(4, 2)", decimal.Decimal("123.45")),
        ("binary(2)", b"abc"),
        ("tinyint", 128),
        ("float", 1e300),
        ("time", datetime.time(1, tzinfo=datetime.UTC)),
        ("timestamp(9)", pd.Timestamp(1)),
        ("timestamp", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        ("string", "\ud800"),
        ("date", datetime.date.max - datetime.date.min),
    ],
)
def test_a_value_that_is_too_long_or_too_fine_is_refused(db, type, value):
    table = db.create_table("narrow", kolk.Schema([kolk.Column("id", "int"), kolk.Column("v", type)], primary_key="id"))

    with pytest.raises(InvalidRows, match="'v'"):
        table.put({"id": 1, "v": value})


def test_times_with_and_without_a_zone_do_not_mix(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("v", "timestamp_ltz")], "id"))
    aware = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    with pytest.raises(InvalidRows, match="mixes"):
        table.put([{"id": 1, "v": aware}, {"id": 2, "v": aware.replace(tzinfo=None)}])


def test_whole_numbers_go_into_decimals(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("v", "decimal(10, 2)")], "id"))

    table.put({"id": 1, "v": 5})
    table.put(pa.table({"id": [2], "v": [7]}))

    assert table.get([1, 2]).column("v").to_pylist() == [decimal.Decimal("5.00"), decimal.Decimal("7.00")]
    with pytest.raises(InvalidRows, match="'v'"):
        table.put(pa.table({"id": [3], "v": [10**9]}))


def test_keys_of_one_column_come_as_any_array(pages):
    pages.put([{"page": f"/{i}", "pv": i, "title": None} for i in range(3)])

    for keys in (pa.array(["/1"]), pa.chunked_array([["/1"]]), pd.Series(["/1"]), pl.Series(["/1"]), ("/1",)):
        assert pages.get(keys).column("pv").to_pylist() == [1]
    with pytest.raises(InvalidRows, match=r"cannot read rows|cannot be read"):
        pages.put(pd.Series(["/1"]))


def test_a_value_that_python_cannot_show_is_left_to_arrow(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("d", "date")], "id"))
    table.put(pa.table({"id": [1], "d": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}))

    with pytest.raises(InvalidArgument, match="use get"):
        table.get_one(id=1)
    assert table.get([1]).num_rows == 1


def test_a_key_column_of_any_name_can_be_a_prefix(db):
    schema = kolk.Schema([kolk.Column("columns", "int"), kolk.Column("self", "int")], ["columns", "self"])
    table = db.create_table("t", schema)
    table.put({"columns": 1, "self": 2})

    assert table.prefix({"columns": 1}).num_rows == 1
    assert table.get_one(columns=1, self=2) == {"columns": 1, "self": 2}


def test_more_rows_than_can_be_encoded_at_once_are_refused_before_the_lock(db):
    schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("w", "binary(16000)"), kolk.Column("n", "int")], "id")
    table = db.create_table("wide", schema)

    with pytest.raises(TooLarge, match="fewer rows"):
        table.put(pa.table({"id": range(100_000), "n": range(100_000)}), columns=["n"])


def test_a_partial_delete_names_a_column_outside_the_key(pages):
    with pytest.raises(InvalidArgument, match="at least one column"):
        pages.delete(["/"], columns=["page"])


def test_a_tag_must_be_a_tag(pages):
    with pytest.raises(InvalidArgument, match="tag"):
        pages.put({"page": "/", "pv": 1, "title": None}, tag="abc")
    with pytest.raises(InvalidArgument, match="128-bit"):
        kolk.PlainTag(-1, 0)


def test_a_key_that_is_too_long_is_refused(pages):
    with pytest.raises(TooLarge, match="key"):
        pages.put({"page": "x" * 100_000, "pv": 1, "title": None})


def test_a_put_over_the_limits_is_refused_and_says_how_to_split_it(folder):
    config = kolk.EngineConfig(durability="process", put_rows_max=10, put_bytes_max=10_000)
    with kolk.connect(folder, config=config) as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("s", "string")], "id"))

        with pytest.raises(TooLarge, match="max_chunksize"):
            table.put([{"id": i, "s": ""} for i in range(11)])
        with pytest.raises(TooLarge, match="bytes"):
            table.put({"id": 1, "s": "x" * 20_000})
        assert table.scan().to_arrow().num_rows == 0


def test_deletes_can_be_disabled(db):
    schema = kolk.Schema([kolk.Column("id", "int")], primary_key=["id"])
    table = db.create_table("t", schema, options={"table.delete.behavior": "disable"})

    with pytest.raises(DeletesDisabled, match=r"table\.delete\.behavior"):
        table.delete([1])


def test_wrong_arguments_say_what_is_right(pages):
    with pytest.raises(InvalidArgument, match="mode is one of"):
        pages.put({"page": "/", "pv": 1, "title": None}, mode="merge")
    with pytest.raises(InvalidArgument, match=r"page=\.\.\."):
        pages.get_one(id=1)
    for wrong in (["nope"], 5, [["page"]], ["pv", "pv"]):
        with pytest.raises(InvalidArgument, match="column"):
            pages.put({"page": "/"}, columns=wrong)
    for call in (pages.scan, lambda columns: pages.get(["/"], columns=columns)):
        with pytest.raises(InvalidArgument, match="names no column"):
            call(columns=[])
    with pytest.raises(InvalidArgument, match="mode is one of"):
        pages.put({"page": "/", "pv": 1, "title": None}, mode=[])
    with pytest.raises(InvalidArgument, match="'snapshot', a lease"):
        pages.scan(source="snapshots")
    with pytest.raises(InvalidArgument, match="limit"):
        pages.scan(limit=-1)
    with pytest.raises(InvalidRows, match="1 values"):
        pages.get([("/", "a")])


def test_a_log_table_appends_every_row_and_has_no_keys(db):
    schema = kolk.Schema([kolk.Column("at", "bigint"), kolk.Column("what", "string")])
    events = db.create_table("events", schema, buckets=2)

    for n in range(5):
        events.put([{"at": n, "what": "same"}] * 2)

    rows = [row for batch in events.changelog() for row in batch.to_pylist()]
    assert sorted(row["at"] for row in rows) == sorted([*range(5)] * 2)
    assert {row["_change_type"] for row in rows} == {"+I"}
    for refused in (events.scan, lambda: events.get([1]), lambda: events.delete([1])):
        with pytest.raises(InvalidArgument, match="log table"):
            refused()
    with pytest.raises(InvalidRows, match="whole rows"):
        events.put({"at": 1}, columns=["at"])


def test_rows_of_a_log_table_with_a_bucket_key_stay_together(db):
    schema = kolk.Schema([kolk.Column("user", "string"), kolk.Column("n", "int")])
    events = db.create_table("events", schema, buckets=4, bucket_key=["user"])
    events.put([{"user": f"u{n % 5}", "n": n} for n in range(100)])

    homes: dict[str, set[str]] = {}
    for batch in events.changelog():
        for row in batch.to_pylist():
            homes.setdefault(row["user"], set()).add(row["_bucket"])
    assert all(len(buckets) == 1 for buckets in homes.values())


def test_a_lookup_takes_so_many_keys_and_no_more(pages, monkeypatch):
    monkeypatch.setattr("kolk.engine.rows.GET_KEYS_MAX", 2)

    assert pages.get(["/", "/a"]).num_rows == 0
    with pytest.raises(TooLarge, match="scan instead"):
        pages.get(["/", "/a", "/b"])
