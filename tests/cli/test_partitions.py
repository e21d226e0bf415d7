"""Tables that are cut into partitions: made, listed, dropped, and what readers are told."""

import csv
import datetime
import io
import json
import signal

import pytest
from tests.cli.output import lines

import kolk
from kolk.server.run import Server

HITS = "day date, id int, v string"


@pytest.fixture
def hits(ok):
    """A table of two days, of two rows and of one."""
    ok("table", "create", "hits", "--columns", HITS, "-k", "day,id", "--partition-by", "day", "--buckets", "2")
    ok("put", "hits", "-i", "csv", input="day,id,v\n2026-11-14,1,a\n2026-11-14,2,b\n2026-11-15,1,c\n")
    return "hits"


@pytest.fixture
def server(folder):
    with Server.open(folder, kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)) as running:
        yield running


def test_partitions_are_listed_with_their_changes(ok, hits):
    found = lines(ok("partition", "list", hits))

    assert [(one["partition"], one["buckets"], one["changes"]) for one in found] == [
        ("day=2026-11-14", 2, 2),
        ("day=2026-11-15", 2, 1),
    ]
    assert found[0]["created"].endswith("Z")
    assert list(lines(ok("partition", "list", hits, "--no-changes"))[0]) == ["partition", "created", "buckets"]
    assert "day=2026-11-15" in ok("partition", "list", hits, "-f", "table")


def test_a_partition_is_made_and_dropped_by_its_values(run, ok, hits):
    ok("partition", "add", hits, "day=2026-11-16")
    again = run("partition", "add", hits, "day=2026-11-16")
    ok("partition", "add", hits, "day=2026-11-16", "--if-not-exists")
    ok("partition", "drop", hits, "day=2026-11-14", "--yes")
    gone = run("partition", "drop", hits, "day=2026-11-14", "--yes")
    ok("partition", "drop", hits, "day=2026-11-14", "--yes", "--if-exists")

    assert (again.exit_code, gone.exit_code) == (1, 3)
    assert [one["partition"] for one in lines(ok("partition", "list", hits))] == ["day=2026-11-15", "day=2026-11-16"]
    assert [one["v"] for one in lines(ok("scan", hits))] == ["c"]


def test_what_was_there_is_not_told_as_made_nor_what_was_not_there_as_dropped(run, hits):
    there = run("partition", "add", hits, "day=2026-11-14", "--if-not-exists")
    gone = run("partition", "drop", hits, "day=2026-11-20", "--if-exists")

    assert (there.exit_code, gone.exit_code) == (0, 0)
    assert there.stderr == f"{hits} has the partition day=2026-11-14 already; it was left alone\n"
    assert gone.stderr == f"{hits} has no partition day=2026-11-20; nothing was done\n"


def test_several_columns_name_a_partition_in_any_order(ok):
    ok(
        "table",
        "create",
        "--ddl",
        "CREATE TABLE s (d INT, r STRING, k INT, PRIMARY KEY (d, r, k)) PARTITIONED BY (d, r)",
    )

    ok("partition", "add", "s", "r=eu", "d=1")
    ok("partition", "add", "s", "d=2/r=us")

    assert [one["partition"] for one in lines(ok("partition", "list", "s"))] == ["d=1/r=eu", "d=2/r=us"]


def test_a_partition_is_not_dropped_without_a_yes(run, ok, hits):
    done = run("partition", "drop", hits, "day=2026-11-14")

    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert len(lines(ok("partition", "list", hits))) == 2


def test_on_a_terminal_one_is_asked(on_terminal, ok, hits):
    refused, seen = on_terminal("partition", "drop", hits, "day=2026-11-14", typed="n\n")
    agreed, _ = on_terminal("partition", "drop", hits, "day=2026-11-14", typed="y\n")

    assert (refused, agreed) == (1, 0)
    assert "Drop the partition day=2026-11-14 of hits" in seen
    assert len(lines(ok("partition", "list", hits))) == 1


@pytest.mark.parametrize("values", [["2026-11-14"], ["day=soon"], ["hour=1"], ["day=2026-11-14", "hour=1"]])
def test_what_names_no_partition_is_refused(run, hits, values):
    assert run("partition", "add", hits, *values).exit_code == 1


def test_a_table_without_partitions_says_so(run, pages):
    for arguments in (["list", pages], ["add", pages, "a=1"], ["drop", pages, "a=1", "--yes"]):
        done = run("partition", *arguments)

        assert (done.exit_code, "has no partitions" in done.stderr) == (1, True)
        assert "--partition-by NAMES" in done.stderr


def test_a_description_and_the_status_count_partitions(ok, hits, pages):
    described = json.loads(ok("table", "describe", hits))
    status = {one["table"]: one for one in json.loads(ok("status"))["tables"]}

    assert described["partition_by"] == ["day"]
    assert described["partitions"] == ["day=2026-11-14", "day=2026-11-15"]
    assert "partitioned by (day): 2 partitions" in ok("table", "describe", hits, "-f", "table")
    assert [one["partition_by"] for one in lines(ok("table", "list"))] == [["day"], []]
    assert (status[hits]["partitions"], status[hits]["buckets"], status[hits]["changes"]) == (2, 4, 3)
    assert "partitions" not in status[pages]
    assert "day=2026-11-14/0" in ok("status", "-f", "table")


def test_many_buckets_do_not_fill_the_screen(run, ok):
    ok("table", "create", "t", "--columns", "d int, k int", "-k", "d,k", "--partition-by", "d", "--buckets", "8")
    ok("put", "t", "-i", "csv", input="d,k\n" + "".join(f"{d},1\n" for d in range(5)))

    assert "and 24 more" in ok("status", "-f", "table")
    assert "and 8 more buckets; -f json has them all, and kolk partition list t" in run(
        "table", "describe", "t", "-f", "table"
    ).stderr  # fmt: skip


def test_rows_are_put_and_looked_up_as_in_any_table(run, ok, hits):
    assert json.loads(ok("get", hits, "day=2026-11-14,id=2"))["v"] == "b"
    ok("put", hits, "-i", "csv", "--delete", input="day,id\n2026-11-14,2\n")
    assert run("get", hits, "day=2026-11-14,id=2").exit_code == 3


def test_a_put_to_a_partition_that_nobody_made_is_refused_if_the_table_wants_that(run, ok):
    ok("table", "create", "t", "--columns", "d int, k int", "-k", "d,k", "--partition-by", "d",
       "--option", "table.dynamic-partition.enabled=false")  # fmt: skip

    refused = run("put", "t", "-i", "csv", input="d,k\n1,1\n")
    ok("partition", "add", "t", "d=1")
    ok("put", "t", "-i", "csv", input="d,k\n1,1\n")

    assert (refused.exit_code, "add_partition" in refused.stderr) == (3, True)


def test_the_last_changes_are_those_of_all_partitions(ok, hits):
    of_a_day = ("--bucket", "day=2026-11-15/0", "--bucket", "day=2026-11-15/1")

    assert sorted(one["v"] for one in lines(ok("tail", hits))) == ["a", "b", "c"]
    assert len(lines(ok("tail", hits, "-n", "2"))) == 2
    assert [one["v"] for one in lines(ok("tail", hits, "--from", "earliest", *of_a_day))] == ["c"]


def test_partitions_are_chosen_by_their_columns(run, ok, hits):
    late = ("--where", "day >= '2026-11-15'")

    assert [one["v"] for one in lines(ok("tail", hits, *late))] == ["c"]
    assert [one["v"] for one in lines(ok("tail", hits, "--from", "earliest", *late))] == ["c"]
    assert [one["v"] for one in lines(ok("scan", hits, *late))] == ["c"]
    assert run("tail", hits, "--where", "v = 'a'").exit_code == 1
    assert run("tail", hits, "--follower", "etl", *late).exit_code == 2


def test_a_bare_offset_means_nothing_where_there_are_partitions(run, hits):
    done = run("tail", hits, "--from", "3")

    assert (done.exit_code, "has partitions" in done.stderr) == (2, True)


@pytest.fixture
def upheaval(ok, hits):
    """A follower that has read everything; then one day goes, another comes, and one goes that it never saw."""
    ok("tail", hits, "--follower", "etl")
    ok("put", hits, "-i", "csv", input="day,id,v\n2026-11-14,3,d\n")
    ok("partition", "drop", hits, "day=2026-11-14", "--yes")
    ok("put", hits, "-i", "csv", input="day,id,v\n2026-11-16,1,e\n")
    return hits


def told(found):
    return [tuple(one[name] for name in ("event", "partition", "unread", "v") if name in one) for one in found]


def test_tail_tells_of_partitions_among_the_changes(ok, upheaval):
    found = lines(ok("tail", upheaval, "--follower", "etl"))

    assert told(found) == [("dropped", "day=2026-11-14", 1), ("created", "day=2026-11-16"), ("e",)]
    assert found[0]["timestamp"].endswith("Z")
    assert ok("tail", upheaval, "--follower", "etl") == ""


def test_json_has_them_in_its_array_and_a_terminal_a_line_each(ok, upheaval):
    ok("tail", upheaval, "--follower", "other")
    ok("partition", "drop", upheaval, "day=2026-11-16", "--yes")

    assert told(json.loads(ok("tail", upheaval, "--follower", "other", "-f", "json"))) == [
        ("dropped", "day=2026-11-16", 0)
    ]
    shown = ok("tail", upheaval, "--follower", "etl", "-f", "table").splitlines()
    assert [line.split()[:2] for line in shown] == [
        ["==", "day=2026-11-14"],
        ["==", "day=2026-11-16"],
        ["==", "day=2026-11-16"],
    ]
    assert shown[0].endswith("dropped, 1 change unread")


def test_a_format_of_rows_alone_leaves_them_to_stderr(run, upheaval):
    done = run("tail", upheaval, "--follower", "etl", "-f", "csv")

    assert [row["v"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["e"]
    assert "day=2026-11-14 was dropped, 1 change unread" in done.stderr


def test_tail_goes_on_when_a_partition_is_dropped_and_says_where_it_stopped(hits, start, server):
    with kolk.connect(server.url) as db:
        table = db.table(hits)
        with table.scan() as scan:
            process = start("tail", hits, "--from", json.dumps(scan.offsets), "--follow", "--url", server.url)
        table.drop_partition(day="2026-11-14")
        table.put({"day": datetime.date(2026, 11, 17), "id": 1, "v": "last"})
        seen = [json.loads(process.stdout.readline()) for _ in range(3)]

        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)

    assert told(seen) == [("dropped", "day=2026-11-14", 0), ("created", "day=2026-11-17"), ("last",)]
    assert process.returncode == 130
    assert '"partitions":' in said
    assert "day=2026-11-14" not in said


def test_a_scan_that_loses_a_partition_writes_the_others_and_ends_with_3(hits, start, server):
    rows = [{"day": datetime.date(2026, 11, 14), "id": number, "v": "x" * 1000} for number in range(40_000)]
    with kolk.connect(server.url) as db:
        table = db.table(hits)
        table.put(rows)
        process = start("scan", hits, "--url", server.url)
        # The rest waits for its reader: it is more than fits into what lies between.
        seen = [json.loads(process.stdout.readline())]

        table.drop_partition(day="2026-11-15")
        seen += map(json.loads, process.stdout)
        said = process.stderr.read()

    assert process.wait(30) == 3
    assert said.startswith("error: dropped during the scan, so that some of its rows are missing: day=2026-11-15;")
    assert {one["day"] for one in seen} == {"2026-11-14"}
    assert len(seen) == len(rows)
