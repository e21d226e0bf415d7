"""Arguments that make no sense: each call says at once what it wants instead, with an error of Kolk's own."""

import math
from decimal import Decimal
from enum import Enum

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kolk
from kolk.errors import InvalidArgument, InvalidInput, InvalidName, InvalidRows, InvalidSchema


def test_partition_columns_are_a_list_of_names_or_none(db):
    schema = kolk.Schema([kolk.Column("day", "date"), kolk.Column("k", "int")], primary_key=["day", "k"])

    for wrong in (5, "day", [5], b"day"):
        with pytest.raises(InvalidSchema, match="partition_by is a list of column names"):
            db.create_table("t", schema, partition_by=wrong)

    assert db.create_table("plain", schema, partition_by=None).changelog().offsets == {"0": 0}
    assert db.create_table("cut", schema, partition_by=iter(["day"])).add_partition(day="2026-11-15").id == 1


@pytest.mark.parametrize("limit", [-1, 1.5, "5", 2**63, 2**64])
def test_the_limit_of_a_scan_is_a_number_that_rows_can_be_counted_by(pages, limit):
    with pytest.raises(InvalidArgument, match="limit is a number of rows"):
        pages.scan(limit=limit)


def test_a_limit_beyond_all_rows_is_none(pages):
    pages.put({"page": "/", "pv": 1, "title": None})

    assert pages.scan(limit=2**63 - 1).to_arrow().num_rows == 1


@pytest.mark.parametrize("buckets", [5, "12", [5], [None], [["0"]]])
def test_buckets_are_a_list_of_names_for_every_reader(pages, buckets):
    with pages.scan(shared=True) as shared:
        for call in (pages.scan, pages.changelog, lambda buckets: pages.join_scan(shared.id, buckets=buckets)):
            with pytest.raises(InvalidArgument, match="buckets is a list of bucket names"):
                call(buckets=buckets)


def test_offsets_of_a_table_without_partitions_name_its_buckets_alone(pages):
    pages.put({"page": "/", "pv": 1, "title": None})

    for wrong, named in (({"partitions": 1, "77": 3}, "partitions"), ({"77": 3, "partitions": 1}, "77")):
        for offsets in ({"start": wrong}, {"stop": wrong}):
            with pytest.raises(InvalidArgument, match=f"names a bucket '{named}'"):
                pages.changelog(**offsets)
        with pytest.raises(InvalidArgument, match=f"start names a bucket '{named}'"):
            pages.changelog(start=wrong, follower="reader")
    assert pages.changelog(follower="reader").offsets == dict.fromkeys("0123", 0)


@pytest.mark.parametrize("nonce", [5, 0, b"x", "half a pair \ud800", "x" * 201])
def test_a_nonce_is_text(pages, nonce):
    with pytest.raises(InvalidArgument, match="a nonce is text"):
        pages.scan(nonce=nonce)


def test_what_a_lease_keeps_is_named_by_table_and_bucket(db, pages):
    for wrong in (5, "web.pages", None):
        with pytest.raises(InvalidArgument, match="tables is a list of table names"):
            db.lease(wrong)
    for call in (lambda: pages.lease(snapshots=5), lambda: db.lease({"web.pages": 5})):
        with pytest.raises(InvalidArgument, match="snapshots maps buckets"):
            call()


def test_several_things_are_not_one(db, pages):
    with pytest.raises(InvalidArgument, match="batches is a list or an iterator"):
        pages.put_stream(5)
    for wrong in (5, "handle"):
        with pytest.raises(InvalidArgument, match="handles is a list"):
            db.discard(wrong)


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, 0, 1e300, True, "60"])
def test_a_span_of_time_among_the_settings_has_an_end(value):
    for name in ("follower_ttl_seconds", "scan_ttl_seconds", "bucket_idle_seconds"):
        with pytest.raises(InvalidArgument, match=f"{name} is a positive number of at most"):
            kolk.EngineConfig(**{name: value})
    with pytest.raises(InvalidArgument, match="drain_seconds"):
        kolk.ServerConfig(drain_seconds=value)


def test_a_whole_number_among_the_settings_fits_a_machine_word():
    for value in (2**63, math.inf, math.nan, 1.5, True):
        with pytest.raises(InvalidArgument, match="kv_block_cache_bytes is a positive whole number"):
            kolk.EngineConfig(kv_block_cache_bytes=value)
    with pytest.raises(InvalidArgument, match="port is a number from 0 to 65535"):
        kolk.ServerConfig(port=True)


def test_an_empty_path_is_no_folder_and_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for call in (kolk.connect, kolk.start):
        with pytest.raises(InvalidArgument):
            call("")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("buckets", [5, "12", [5]])
def test_a_lease_lets_go_of_buckets_that_are_named_in_a_list(pages, buckets):
    pages.put({"page": "/", "pv": 1, "title": None})
    with pages.lease() as lease:
        before = lease.snapshots
        with pytest.raises(InvalidArgument, match="buckets is a list of bucket names"):
            lease.release(pages.name, buckets)

        assert lease.snapshots == before
        lease.release(pages.name, iter(["0", "1"]))
        assert list(lease.snapshots[pages.name]) == ["2", "3"]


def test_a_lease_knows_its_tables_by_all_of_their_names(db):
    for name in ("t", "u"):
        db.create_table(name, kolk.Schema([kolk.Column("k", "int")], "k")).put({"k": 1})
    with db.lease(["default.t", "u"]) as lease:
        assert lease.table("default.t") == lease.table("t") is not None
        lease.release("default.t")
        assert list(lease.snapshots) == ["u"]


def test_a_writer_takes_no_tag_but_that_of_a_put(pages):
    with pages.writer("job", ["pv"]) as writer, pytest.raises(InvalidArgument, match="tag is the tag of"):
        writer.put([{"page": "/", "pv": 1}], tag=5)


def test_a_writer_that_cannot_be_undone_so_is_refused(pages):
    with pytest.raises(InvalidArgument, match="undo is one of"):
        pages.writer("job", undo=[])


def test_a_transaction_is_told_of_its_table_by_name_or_handle(db):
    with pytest.raises(InvalidName, match="not a table name"), db.transaction("job", 1) as tx:
        tx.put([{"page": "/"}], table=5)


@pytest.mark.parametrize("id", [[], 5, None])
def test_scans_and_leases_are_named_by_text(db, pages, id):
    for call in (db.close_scan, db.drop_lease, db.describe_lease, pages.join_scan):
        with pytest.raises(InvalidArgument):
            call(id)


def test_what_a_log_table_shows_is_not_shared(db):
    log = db.create_table("log", kolk.Schema([kolk.Column("v", "string")]))
    for options in ({"shared": True}, {"nonce": "n"}):
        with pytest.raises(InvalidArgument, match="not shared"):
            log.scan(limit=5, **options)


@pytest.mark.parametrize("target", ["localhost:9123", "127.0.0.1:9123/", "kolk:/db.example.org:1", "[::1]:9123"])
@pytest.mark.parametrize("call", [kolk.connect, kolk.start])
def test_an_address_that_lacks_its_beginning_is_not_taken_for_a_new_folder(call, target, tmp_path, monkeypatch):
    """Whoever writes there would believe that it is on the server."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidArgument, match=r"looks like the address of a server, which is kolk://.*write \./"):
        call(target)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_be_named_like_an_address_by_who_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("./localhost:9123", "localhost:9123", "12:30/data"):
        kolk.connect(path).close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["12:30", "localhost:9123"]


@pytest.mark.parametrize("keys", ["/", 1, None, b"/", {"/"}, iter(["/"])])
def test_keys_are_a_list_of_them(pages, keys):
    for call in (pages.get, pages.delete):
        with pytest.raises(InvalidRows, match=r"cannot read keys from a .*; give a list of keys: \['/'\]"):
            call(keys)


def test_a_misspelt_column_is_told_which_one_was_meant_of_those_that_the_table_has(pages):
    told = r"there is no column 'titel'; did you mean 'title'\? The columns are page, pv, title$"
    row = {"page": "/", "pv": 1, "titel": "x"}

    for call in (
        lambda: pages.put(row),
        lambda: pages.put(pa.table({name: [value] for name, value in row.items()})),
        lambda: pages.put(row, columns=["pv"]),
        lambda: pages.scan(columns=["titel"]),
        lambda: pages.scan(where={"titel": "x"}),
        lambda: pages.writer("job", ["titel"]),
        lambda: pages.drop_column("titel"),
    ):
        with pytest.raises(InvalidInput, match=told):
            call()


def test_buckets_are_named_by_text_although_they_look_like_numbers(pages):
    for what in ("start", "stop"):
        with pytest.raises(
            InvalidArgument, match=f"{what} names a bucket 0; the names of buckets are text: {{'0': 0}}"
        ):
            pages.changelog(**{what: {0: 0}})


@pytest.mark.parametrize("column", [["/"], ("/",), pa.array(["/"]), np.array(["/"])])
def test_a_dict_is_one_row_and_not_a_table(pages, column):
    with pytest.raises(
        InvalidRows, match=r"'page' is a string, got .*; a dict is one row, and columns go in as pa.table"
    ):
        pages.put({"page": column, "pv": [1], "title": [None]})


def test_a_list_is_a_value_where_the_column_holds_lists(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "array<int>")], "k"))

    table.put({"k": 1, "v": [1, 2]})

    assert table.get_one(k=1)["v"] == [1, 2]


class Word(str, Enum):  # noqa: UP042 - one of the kind whose str() is not its text
    """Texts that have names in a program, which are not the texts."""

    KEY = "k"
    VALUE = "v"
    OTHER = "w"
    JOB = "job"


class Count(int):
    """A number that is more than a number to a program."""


@pytest.mark.parametrize("text", [np.str_, Word])
def test_names_are_taken_as_the_text_that_they_are(db, text):
    schema = kolk.Schema([kolk.Column(text("k"), "string"), kolk.Column(text("v"), "int")], [text("k"), text("v")])
    table = db.create_table(text("job"), schema, partition_by=[text("k")], bucket_key=[text("v")])
    table.add_column(text("w"), "int")
    table.drop_column(text("w"))
    table.rename_column("v", text("w"))
    table.put([{"k": "a", "w": 1}])

    assert db.table("job").schema.names == ("k", "w")
    assert db.table("job").info.spec.partition_by == ("k",)
    assert table.scan(columns=[text("w")], nonce=text("job")).to_arrow().to_pylist() == [{"w": 1}]
    with table.changelog(follower=text("job")) as changelog:
        assert len(list(changelog)) == 1
    assert [(follower.table, follower.name) for follower in db.followers()] == [("job", "job")]


@pytest.mark.parametrize("text", [np.str_, Word])
def test_owners_and_applications_are_named_by_the_text_that_they_are(db, text):
    table = db.create_table("t", kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "int")], "k"))

    with table.writer(owner=text("job"), columns=[text("v")], resume_epoch=None) as writer:
        writer.put([{"k": 1, "v": 1}], epoch=Count(3))
        writer.commit(Count(3))
        assert writer.state(Count(3)) == writer.state()
    with table.transaction(text("job"), Count(1)) as tx:
        tx.put([{"k": 2, "v": 2}])

    assert tx.verdict == "committed"
    assert [(each.app, each.version) for each in db.transactions()] == [("job", 1)]
    assert db.release_lock("t", text("job"))


def test_snapshots_offsets_and_limits_are_the_numbers_that_they_are(pages):
    pages.put({"page": "/", "pv": 1, "title": None})
    number = pages.take_snapshot()[0].id

    for given in (Count(number), np.int64(number)):
        with pages.lease(lease_id=np.str_("mine"), snapshots={np.str_("0"): given}) as lease:
            assert lease.snapshots == {"web.pages": {"0": number}}
    assert pages.scan(limit=Count(1)).to_arrow().num_rows == 1
    assert pages.changelog(start={np.str_("0"): Count(0)}).offsets["0"] == 0


def test_a_column_gets_a_name_that_is_text(pages):
    for wrong in (None, 5, "", "no name", 10**5000):
        with pytest.raises(InvalidName, match="is not a column name"):
            pages.rename_column("pv", wrong)


def test_a_duration_is_one_that_there_can_be(pages):
    for ttl in (10**400, -(10**400), 10**5000, math.inf, math.nan, "10 fortnights", int):
        for call in (pages.lease, pages.scan, lambda ttl: pages.writer("job", ["pv"], ttl)):
            with pytest.raises(InvalidArgument, match="ttl is a duration"):
                call(ttl=ttl)


def test_what_a_lease_keeps_of_a_bucket_is_one_number(db, pages):
    for wrong in ({1: 2}, {None: 2}):
        with pytest.raises(InvalidArgument, match="snapshots maps buckets to the numbers"):
            pages.lease(snapshots=wrong)
    for wrong in ([1], "1", None, 1.5, True, -1, 2**63, 10**5000):
        with pytest.raises(InvalidArgument, match=r"snapshots maps buckets to the numbers .* bucket '0'"):
            pages.lease(snapshots={"0": wrong})
    for wrong in ([["web.pages"]], [{}], [5], {5: None}):
        with pytest.raises(InvalidArgument, match="tables is a list of table names"):
            db.lease(wrong)


def test_a_numpy_array_without_a_dimension_is_one_value(pages):
    pages.put([{"page": f"/{pv}", "pv": pv, "title": None} for pv in range(3)])

    assert pages.scan(where={"pv": np.array(1)}).to_arrow()["page"].to_pylist() == ["/1"]
    assert pages.scan(where={"pv": np.array(None)}).to_arrow().num_rows == 0


def test_a_signalling_nan_is_no_decimal(db):
    table = db.create_table("t", kolk.Schema([kolk.Column("k", "int"), kolk.Column("v", "decimal(5, 2)")], "k"))
    frame = pd.DataFrame({"k": [1], "v": pd.Series([Decimal("sNaN")], dtype=object)})

    for data in (frame, {"k": 1, "v": Decimal("sNaN")}):
        with pytest.raises(InvalidRows, match="the column 'v'"):
            table.put(data)


def test_a_stream_of_puts_ends_with_the_last_count_of_its_writer(pages):
    rows = [{"page": "/", "pv": 1, "title": None}]
    stream = pages.put_stream([rows] * 4, tag=kolk.PlainTag(7, 2**63 - 2))
    taken = []

    with pytest.raises(InvalidArgument, match="63-bit count"):
        taken.extend(stream)

    assert [result.tag.seq for result in taken] == [2**63 - 2, 2**63 - 1]


@pytest.mark.parametrize("type", ["int", "bigint", "double", "decimal(38, 0)"])
def test_a_default_of_thousands_of_digits_is_refused(type):
    with pytest.raises(InvalidSchema, match=r"'v' is a .*, which has no value an int of too many digits"):
        kolk.Column("v", type, default=10**5000)


def test_numbers_of_thousands_of_digits_are_refused_by_name(pages):
    for call, named in (
        (lambda: pages.scan(limit=10**5000), "limit"),
        (lambda: pages.transaction("job", 10**5000), "version"),
        (lambda: pages.transaction(10**5000, 1), "app_id"),
        (lambda: pages.writer("job", ["pv"], resume_epoch=10**5000), "epoch"),
        (lambda: pages.writer(10**5000), "owner"),
    ):
        with pytest.raises(InvalidArgument, match=f"{named} is a"):
            call()


@pytest.mark.parametrize("agg", [pd.NA, "sum", ["sum"], 0, ""])
def test_functions_of_an_arrow_schema_are_given_in_a_dict(agg):
    with pytest.raises(InvalidSchema, match="agg is a dict"):
        kolk.Schema.from_arrow(pa.schema([("k", pa.int32())]), "k", agg=agg)
    with pytest.raises(InvalidSchema, match="params is a dict"):
        kolk.Column("v", "int", params=agg)
