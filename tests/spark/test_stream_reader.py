"""Streaming reads at the level of Spark's calls: every start, every form, limits, restarts, and what is held."""

import datetime
import json
import os
import signal

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.spark.pages import PAGES, held, put

import kolk
from kolk import Column, Schema
from kolk.errors import (
    InvalidArgument,
    InvalidRows,
    LeaseLost,
    OffsetOutOfRange,
    TableNotFound,
    UnknownFormat,
)

EVENTS = Schema([Column("id", "bigint"), Column("v", "string")])


def as_is(table, key="id"):
    return {row[key]: row for row in table.scan().to_arrow().to_pylist()}


# --- where it begins


def test_full_reads_all_rows_and_then_every_change(pages, query, db, name):
    put(pages, range(100))
    stream = query(changes="cdc")

    assert stream.drain() == 1
    pages.delete([{"id": 7}])
    put(pages, [1, 200], "y")
    assert stream.drain() == 1

    assert stream.table() == as_is(pages)
    kinds = [row["_change_type"] for row in stream.rows[1]]
    assert sorted(kinds) == ["delete", "insert", "update_postimage", "update_preimage"]
    assert held(db, name) == (0, 1)  # the first commit came with the second batch


def test_an_empty_table_writes_down_where_it_began(pages, query):
    stream = query(changes="cdc")

    assert stream.drain() == 1
    put(pages, range(3))
    assert stream.drain() == 1

    assert stream.table() == as_is(pages)


def test_earliest_reads_the_log_from_its_start(pages, query):
    put(pages, range(10))
    put(pages, range(5), "y")

    stream = query(start="earliest", changes="cdc")
    stream.drain()

    assert len(stream.everything()) == 20
    assert stream.table() == as_is(pages)


def test_latest_reads_what_comes_after_the_query_has_begun_even_if_it_dies_at_once(pages, query):
    put(pages, range(10))
    stream = query(start="latest", changes="cdc")
    assert stream.trigger()

    put(pages, [50])
    stream.start()
    put(pages, [51])
    stream.drain()

    assert sorted(row["id"] for row in stream.everything()) == [50, 51]


def test_a_time_reads_what_was_committed_since(pages, query, db, name):
    put(pages, range(10))
    (before,) = {row["_commit_timestamp"] for row in pages.changelog().__iter__().__next__().to_pylist()}
    while (now := datetime.datetime.now(datetime.UTC)) - before < datetime.timedelta(milliseconds=5):
        pass
    put(pages, [77])

    stream = query(start=now.isoformat())
    stream.drain()

    assert [row["id"] for row in stream.everything()] == [77]


def test_a_time_of_which_the_log_has_lost_changes_is_refused(db, name, query):
    table = db.create_table(name, Schema([Column("n", "bigint")]), buckets=1)
    table.put([{"n": 1}])
    (before,) = {row["_commit_timestamp"] for row in table.changelog().__iter__().__next__().to_pylist()}
    table.truncate()
    table.put([{"n": 2}])

    with pytest.raises(OffsetOutOfRange, match=r"may have lost changes.*Start at 'earliest'"):
        query(start=before.isoformat()).trigger()


def test_offsets_of_a_scan_go_on_after_it(pages, query):
    put(pages, range(10))
    with pages.scan() as scan:
        scan.to_arrow()
    put(pages, [3], "y")

    stream = query(start=json.dumps(scan.offsets))
    stream.drain()

    assert stream.everything() == [{"id": 3, "v": "y3"}]


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("yesterday", "a time such as"),
        ("2026-11-15T08:00:00", "time zone"),
        ('{"0": "x"}', "offsets by bucket"),
        ("{", "offsets by bucket"),
        ('{"9": 1}', "names a bucket '9'"),
    ],
)
def test_a_start_that_means_nothing_is_refused(pages, query, start, says):
    stream = query(start=start)

    with pytest.raises(InvalidArgument, match=says):
        stream.trigger()


def test_offsets_beyond_the_log_are_refused(pages, query):
    stream = query(start='{"0": 5}')

    with pytest.raises(OffsetOutOfRange, match="ends at offset 0"):
        stream.trigger()


def test_a_log_table_is_read_from_its_start(db, name, query):
    table = db.create_table(name, EVENTS, buckets=2)
    for each in range(5):
        put(table, [each])
    stream = query()

    stream.drain()
    put(table, [9])
    stream.drain()

    assert sorted(row["id"] for row in stream.everything()) == [0, 1, 2, 3, 4, 9]
    assert held(db, name) == (0, 1)


def test_a_stream_that_is_told_where_to_stop_is_refused_and_does_not_read_past_it(pages, query):
    with pytest.raises(InvalidArgument, match="'stop' is for a batch read alone"):
        query(start="earliest", stop="latest")


# --- forms


def test_a_stream_that_is_told_to_read_a_changelog_has_its_columns(pages, query):
    put(pages, [4])
    stream = query(start="earliest", source="changelog", columns="id,_change_type")

    stream.drain()

    assert stream.everything() == [{"id": 4, "_change_type": "insert"}]


def test_rows_alone_show_what_changes_leave_and_refuse_a_deletion(pages, query):
    put(pages, range(3))
    stream = query(columns="v")
    stream.drain()
    put(pages, [1], "y")
    stream.drain()

    assert stream.rows[1] == [{"v": "y1"}]
    pages.delete([{"id": 1}])
    with pytest.raises(InvalidRows, match="'changes', 'upserts'"):
        stream.drain()


def test_upserts_say_what_to_put_and_what_to_delete(pages, query):
    put(pages, range(3))
    stream = query(changes="upserts")
    stream.drain()
    put(pages, [1], "y")
    pages.delete([{"id": 2}])
    stream.drain()

    assert sorted(stream.rows[1], key=lambda row: row["id"]) == [
        {"id": 1, "v": "y1", "_change_type": "update_postimage"},
        {"id": 2, "v": "x2", "_change_type": "delete"},
    ]


def test_change_columns_are_chosen_by_a_schema_of_ones_own(pages, query):
    put(pages, [4])
    stream = query(start="earliest")
    chosen = StructType(
        [StructField("_commit_version", LongType(), False), StructField("_change_type", StringType(), False)]
    )
    stream.start(schema=chosen)

    stream.drain()

    assert stream.everything() == [{"_commit_version": 0, "_change_type": "insert"}]


def test_a_column_with_the_name_of_a_change_column_is_refused(db, name, query):
    schema = Schema([Column("id", "bigint", nullable=False), Column("_commit_version", "bigint")], primary_key=["id"])
    db.create_table(name, schema)

    with pytest.raises(InvalidArgument, match="_commit_version"):
        query(changes="cdc")


# --- limits


def test_limits_divide_rows_and_changes_exactly(pages, query):
    put(pages, range(1_000))
    stream = query(maxRowsPerTrigger="70", changes="cdc", parallelism="2")
    assert stream.drain() == 15
    put(pages, range(300), "y")
    assert stream.drain() == 9

    assert [len(stream.rows[batch]) for batch in range(15)] == [70] * 14 + [20]
    assert [len(stream.rows[batch]) for batch in range(15, 24)] == [70] * 8 + [40]
    assert stream.table() == as_is(pages)


def test_every_batch_can_be_read_again_to_the_row(pages, query):
    put(pages, range(500))
    stream = query(maxRowsPerTrigger="90", changes="cdc", parallelism="2")
    stream.trigger()
    put(pages, range(0, 500, 2), "y")
    stream.reader.commit = lambda end: None  # so that all of them can be
    stream.drain()

    for batch, rows in stream.rows.items():
        assert sorted(map(str, stream.read(batch))) == sorted(map(str, rows))


def test_bytes_are_an_estimate_and_all_available_is_all(pages, query):
    pages.put([{"id": each, "v": "x" * 1_000} for each in range(300)])
    stream = query(start="earliest", maxBytesPerTrigger="50000", changes="cdc")

    assert stream.reader.getDefaultReadLimit() == ReadMaxBytes(50_000)
    assert stream.trigger()
    assert 25 <= len(stream.rows[0]) <= 60
    assert stream.trigger(ReadAllAvailable())
    assert len(stream.rows[1]) == 300 - len(stream.rows[0])
    assert stream.trigger(ReadMaxRows(1)) is False


def test_bytes_divide_snapshots_too(pages, query):
    pages.put([{"id": each, "v": "x" * 1_000} for each in range(300)])
    stream = query(maxBytesPerTrigger="50000")

    assert 5 <= stream.drain() <= 12
    assert sorted(row["id"] for row in stream.everything()) == list(range(300))


def test_available_now_ends_at_what_there_was(pages, query):
    put(pages, range(30))
    stream = query(maxRowsPerTrigger="8", changes="cdc")
    stream.reader.prepareForTriggerAvailableNow()
    stream.trigger()
    put(pages, range(100, 130))

    stream.drain()

    assert {row["id"] for row in stream.everything()} <= {*range(30)} | {*range(100, 130)}
    stream.start()
    stream.drain()
    assert stream.table() == as_is(pages)


def test_available_now_of_a_log_reads_no_later_change(pages, query):
    put(pages, range(30))
    stream = query(start="earliest", maxRowsPerTrigger="8", changes="cdc")
    stream.reader.prepareForTriggerAvailableNow()
    put(pages, range(100, 130))

    assert stream.drain() == 4
    assert sorted(row["id"] for row in stream.everything()) == list(range(30))


def test_the_backlog_is_reported(pages, query):
    put(pages, range(30))
    stream = query(start="earliest", maxRowsPerTrigger="10")
    stream.trigger()

    assert stream.reader.reportLatestOffset()["behind"] == 30
    stream.drain()
    assert stream.reader.reportLatestOffset()["behind"] == 0


# --- restarts


def test_a_restart_anywhere_misses_nothing_and_repeats_nothing(pages, query, db, name):
    put(pages, range(200))
    stream = query(maxRowsPerTrigger="30", changes="cdc", parallelism="2")
    for turn in range(12):
        stream.trigger()
        put(pages, range(turn * 7, turn * 7 + 40), f"t{turn}-")
        if turn % 2:
            stream.committed -= 1  # it died before the batch was committed
        stream.start()
    stream.drain()

    assert stream.table() == as_is(pages)
    stream.reader.commit(json.loads(stream.ends[-1]))
    assert held(db, name) == (0, 1)


def test_the_first_batch_begins_where_it_began_when_it_is_tried_again(pages, query, db, name):
    put(pages, range(20))
    stream = query(changes="cdc")
    stream.trigger()
    put(pages, range(20, 25))
    stream.committed = 0

    stream.start()

    assert sorted(row["id"] for row in stream.rows[0]) == list(range(20))
    assert held(db, name) == (1, 1)


def test_offsets_of_another_format_are_refused(pages, query):
    stream = query(start="latest")
    stream.trigger()

    with pytest.raises(UnknownFormat, match="version 99"):
        stream.reader.latestOffset({**json.loads(stream.ends[0]), "version": 99}, ReadAllAvailable())
    with pytest.raises(InvalidArgument, match="no offsets"):
        stream.reader.latestOffset({"version": 1, "log": 3}, ReadAllAvailable())


def test_a_table_that_was_made_anew_is_another_one(pages, query, db, name):
    stream = query(start="latest")
    stream.trigger()
    db.drop_table(name)
    db.create_table(name, PAGES)

    stream.start()

    with pytest.raises(TableNotFound, match="made anew"):
        stream.trigger()


def test_a_lease_that_is_gone_is_told_with_what_to_do(pages, query, db, name):
    put(pages, range(100))
    stream = query(maxRowsPerTrigger="10")
    stream.trigger()
    (lease,) = [each for each in db.leases() if name in each.tables]
    db.drop_lease(lease.id)

    stream.start()

    with pytest.raises(LeaseLost, match=r"new checkpoint.*'start', 'full'"):
        stream.trigger()


def test_a_lease_that_is_lost_while_the_query_runs_is_told(pages, query, db, name):
    put(pages, range(100))
    stream = query(maxRowsPerTrigger="10")
    stream.trigger()
    (lease,) = [each for each in db.leases() if name in each.tables]
    with db.join_lease(lease.id):
        stream.reader._opened._holding._lease.turn()  # as it is due every third of its time

        with pytest.raises(LeaseLost, match="new checkpoint"):
            stream.trigger()


def test_a_log_that_was_trimmed_is_an_error_and_never_skipped(db, name, query):
    table = db.create_table(name, EVENTS)
    put(table, range(10))
    stream = query()
    stream.trigger()
    put(table, range(10, 20))
    (follower,) = [each for each in db.followers() if each.table == name]
    db.drop_follower(name, follower.name)
    table.truncate()

    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match="Nothing is skipped: start the query with a new checkpoint"):
            stream.trigger()
        stream.start()


def test_an_idle_poll_is_one_call_and_starts_no_batch(pages, query):
    put(pages, range(10))
    stream = query()
    stream.drain()
    service = stream.reader._opened.table.link.service
    calls = []
    act = service._act
    service._act = lambda *given, **named: calls.append(given) or act(*given, **named)
    try:
        assert stream.trigger() is False
    finally:
        service._act = act
    assert len(calls) == 1


# --- schemas


def test_where_on_rows_is_refused(pages, query):
    stream = query(where="id > 3")

    with pytest.raises(InvalidArgument, match="partition columns alone"):
        stream.trigger()


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("v", StringType(), False), "'v' is string, not string not null"),
        (StructField("id", StringType()), "'id' is bigint not null, not string"),
        (StructField("w", StringType()), "no column 'w'"),
    ],
)
def test_a_schema_of_ones_own_that_is_not_the_tables_is_refused(pages, query, field, says):
    pages.put([{"id": 1, "v": None}])
    stream = query()
    stream.start(schema=StructType([field]))

    with pytest.raises(InvalidArgument, match=says):
        stream.trigger()


def test_a_schema_of_ones_own_may_allow_nulls_where_there_are_none(pages, query):
    put(pages, [4])
    stream = query()
    stream.start(schema=StructType([StructField("id", LongType())]))

    stream.drain()

    assert stream.everything() == [{"id": 4}]


def test_rows_are_shown_as_the_query_was_planned(pages, query):
    put(pages, range(5))
    stream = query(changes="cdc")
    stream.drain()
    pages.alter([kolk.AddColumn(Column("more", "bigint")), kolk.RenameColumn("v", "w")])
    pages.put([{"id": 9, "w": "new", "more": 3}])
    stream.drain()

    assert [(row["id"], row["v"]) for row in stream.rows[1]] == [(9, "new")]
    stream.start()
    pages.put([{"id": 10, "w": "newer", "more": 4}])
    stream.drain()
    assert [(row["id"], row["w"], row["more"]) for row in stream.rows[2]] == [(10, "newer", 4)]


def test_a_schema_that_changes_while_snapshots_are_read_does_not_divide_them_otherwise(pages, query):
    put(pages, range(100))
    stream = query(maxRowsPerTrigger="30", changes="cdc")
    stream.trigger()
    pages.add_column("more", "bigint", default=1)

    stream.start()
    stream.drain()

    assert sorted(row["id"] for row in stream.everything()) == list(range(100))


def test_snapshots_whose_rows_nobody_counted_are_counted(db, name, query):
    table = db.create_table(name, PAGES, buckets=2, options={"table.changelog.image": "WAL"})
    put(table, range(100))
    stream = query(maxRowsPerTrigger="30", changes="upserts")

    assert stream.drain() == 4
    assert sorted(row["id"] for row in stream.everything()) == list(range(100))


# --- servers


def test_a_server_that_is_killed_in_the_middle_costs_nothing(query, tmp_path):
    """The lease outlives it, and so do the places in the snapshots."""
    with kolk.start(tmp_path / "data") as server:
        port = int(server.url.rpartition(":")[2])
        with kolk.connect(server.url) as db:
            put(db.create_table("t", PAGES, buckets=2), range(100))
        stream = query(url=server.url, table="t", maxRowsPerTrigger="30", changes="cdc")
        stream.trigger()
        os.kill(server.pid, signal.SIGKILL)
    with (
        kolk.start(tmp_path / "data", server=kolk.ServerConfig(port=port, http_port=0)) as server,
        kolk.connect(server.url) as db,
    ):
        stream.reader._opened._holding._lease.renew()
        stream.trigger()
        put(db.table("t"), range(50), "y")
        stream.drain()
        stream.reader.commit(json.loads(stream.ends[-1]))

        assert stream.table() == as_is(db.table("t"))
        assert db.leases() == []
