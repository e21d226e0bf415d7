"""The changelog is shown from any place, followed, and says where it stopped."""

import json
import signal

import pytest
from tests.cli.output import lines


def kinds(text):
    return [(one["_change_type"], one["page"]) for one in lines(text)]


@pytest.fixture
def history(ok, pages):
    """Five changes in one bucket: two inserts, an update of two, a delete."""
    ok("put", pages, "-i", "csv", "--columns", "pv", input="page,pv\n/,2\n")
    ok("put", pages, "-i", "csv", "--delete", input="page\n/about\n")
    return pages


ALL = [("+I", "/"), ("+I", "/about"), ("-U", "/"), ("+U", "/"), ("-D", "/about")]


def test_the_last_changes_are_shown(ok, history):
    assert kinds(ok("tail", history)) == ALL
    assert kinds(ok("tail", history, "-n", "2")) == ALL[-2:]
    assert ok("tail", history, "-n", "0") == ""


def test_a_change_has_its_kind_offset_time_and_bucket(ok, history):
    first = lines(ok("tail", history))[0]

    assert list(first) == ["_change_type", "_log_offset", "_commit_timestamp", "_bucket", "page", "pv", "title"]
    assert first["_bucket"] == "0"
    assert first["_commit_timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", ALL),
        ("latest", []),
        ("3", ALL[3:]),
        ('{"0": 3}', ALL[3:]),
        ("-10m", ALL),
        ("2020-01-01", ALL),
        ("2020-01-01T00:00Z", ALL),
        ("2999-01-01T00:00:00+01:00", []),
    ],
)
def test_tail_starts_where_it_is_told(ok, history, start, expected):
    assert kinds(ok("tail", history, "--from", start)) == expected


def test_with_a_start_it_is_the_first_changes_that_count(ok, history):
    assert kinds(ok("tail", history, "--from", "1", "-n", "2")) == ALL[1:3]
    assert kinds(ok("tail", history, "--from", "1", "-n", "2", "--follow")) == ALL[1:3]


@pytest.mark.parametrize("start", ["yesterday", "{oops", "-10x"])
def test_a_start_that_means_nothing_is_a_usage_error(run, history, start):
    assert run("tail", history, "--from", start).exit_code == 2


def test_an_offset_out_of_range_is_not_found(run, history):
    assert run("tail", history, "--from", "99").exit_code == 3


def test_some_buckets_are_shown_if_one_says_so(run, ok):
    ok("table", "create", "t", "--columns", "page string", "-k", "page", "--buckets", "3")
    ok("put", "t", "-i", "csv", input="page\n" + "".join(f"{n}\n" for n in range(30)))

    of_all = lines(ok("tail", "t", "-n", "100"))
    of_two = lines(ok("tail", "t", "--from", "earliest", "--bucket", "0", "--bucket", "2"))

    assert len(of_all) == 30
    assert of_two == [one for one in of_all if one["_bucket"] in ("0", "2")]
    assert run("tail", "t", "--from", "3").exit_code == 2
    assert run("tail", "t", "--bucket", "9").exit_code == 1


@pytest.mark.parametrize("format", ["csv", "json", "table"])
def test_changes_come_in_other_formats(ok, history, format):
    for start in ([], ["--from", "earliest"]):
        shown = ok("tail", history, "-f", format, *start)

        if format == "json":
            assert [(one["_change_type"], one["page"]) for one in json.loads(shown)] == ALL
        else:
            assert len(shown.splitlines()) == 5 + (format == "csv")
            assert "-D" in shown.splitlines()[-1]


def test_a_log_table_is_shown(ok):
    ok("table", "create", "events", "--columns", "what string")
    ok("put", "events", "-i", "csv", input="what\nclick\nclick\n")

    assert [one["what"] for one in lines(ok("tail", "events"))] == ["click", "click"]


def test_ctrl_c_ends_a_follower_quietly_and_says_where(start, history):
    process = start("tail", history, "--from", "2", "--follow")
    seen = [json.loads(process.stdout.readline())["_log_offset"] for _ in range(3)]

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert seen == [2, 3, 4]
    assert process.returncode == 130
    assert out == ""
    # Between the write and the note of it there is a moment, in which the interruption counts it as not written.
    assert err in [f"""stopped at {place}; go on with --from '{place}'\n""" for place in ('{"0":5}', '{"0":2}')]


def test_a_follower_whose_reader_has_gone_ends(start, history):
    process = start("tail", history, "--from", "earliest", "-f", "jsonl")
    process.stdout.close()

    assert process.wait(30) == 0
    assert process.stderr.read() == ""
