"""Rows come out of get and scan in every format, to stdout or a file."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kolk.cli.formats import Format
from kolk.cli.writers import writing

PAGES = [{"page": "/", "pv": 1, "title": "home"}, {"page": "/about", "pv": 7, "title": None}]


def test_a_pipe_gets_json_lines(ok, pages):
    assert [json.loads(line) for line in ok("scan", pages).splitlines()] == PAGES


def test_a_scan_shows_the_rows_it_is_asked_for(run, ok, pages):
    assert [
        json.loads(line) for line in ok("scan", pages, "--where", "pv > 1 AND title IS NULL").splitlines()
    ] == PAGES[1:]
    assert ok("scan", pages, "-w", "pv > 7", "-c", "page") == ""

    done = run("scan", pages, "--where", "pv >")

    assert done.exit_code == 1
    assert "column 5: found the end of the text" in done.stderr


def test_json_is_one_array_also_without_rows(ok, pages):
    assert json.loads(ok("scan", pages, "-f", "json")) == PAGES
    assert json.loads(ok("scan", pages, "-f", "json", "--limit", "0")) == []


def test_csv_has_a_header_and_quotes_where_needed(ok, pages):
    ok("put", pages, "-i", "json", input='{"page": "a,b", "title": "say \\"hi\\""}\n{"page": "c", "title": ""}\n')

    lines = ok("scan", pages, "-f", "csv").splitlines()

    assert lines == ["page,pv,title", "/,1,home", "/about,7,", '"a,b",,"say ""hi"""', 'c,,""']


def test_arrow_is_a_stream_of_batches(run, pages):
    done = run("scan", pages, "-f", "arrow")

    assert pa.ipc.open_stream(done.stdout_bytes).read_all().to_pylist() == PAGES


def test_parquet_goes_through_a_pipe(run, pages):
    done = run("scan", pages, "-f", "parquet")

    assert pq.read_table(pa.BufferReader(done.stdout_bytes)).to_pylist() == PAGES


@pytest.mark.parametrize("format", ["arrow", "parquet", "csv", "json", "jsonl"])
def test_a_scan_without_rows_is_a_whole_file(ok, pages, tmp_path, format):
    file = tmp_path / f"none.{format}"

    ok("scan", pages, "--limit", "0", "-o", file)

    if format == "parquet":
        assert pq.read_table(file).num_rows == 0
    elif format == "arrow":
        assert pa.ipc.open_stream(file.read_bytes()).read_all().num_rows == 0
    else:
        assert file.read_text() == {"csv": "page,pv,title\n", "json": "[]\n", "jsonl": ""}[format]


def test_a_file_is_written_in_the_format_of_its_ending(run, pages, tmp_path):
    done = run("scan", pages, "-o", tmp_path / "pages.parquet", "--columns", "page,pv")

    assert done.exit_code == 0
    assert "wrote 2 rows" in done.stderr
    assert pq.read_table(tmp_path / "pages.parquet").column_names == ["page", "pv"]
    assert [file.name for file in tmp_path.glob("pages*")] == ["pages.parquet"]


def test_a_file_without_a_known_ending_needs_a_format(run, ok, pages, tmp_path):
    assert run("scan", pages, "-o", tmp_path / "pages").exit_code == 2

    ok("scan", pages, "-o", tmp_path / "pages", "-f", "csv")
    assert (tmp_path / "pages").read_text().startswith("page,pv,title\n")


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(ok, pages, tmp_path):
    pipe = tmp_path / "pages.csv"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(pipe.read_text)
        ok("scan", pages, "-o", pipe)

        assert text.result().startswith("page,pv,title\n/,1,home\n")
    assert pipe.is_fifo()
    assert list(tmp_path.glob("*.partial")) == []


def test_a_link_stays_a_link_to_what_is_written(ok, pages, tmp_path):
    file, link = tmp_path / "files" / "pages.csv", tmp_path / "newest.csv"
    file.parent.mkdir()
    link.symlink_to(file)

    ok("scan", pages, "-o", link)

    assert link.readlink() == file
    assert file.read_text().startswith("page,pv,title\n")


def test_a_folder_is_not_written_to(run, pages, tmp_path):
    done = run("scan", pages, "-o", tmp_path, "-f", "csv")

    assert done.exit_code == 1
    assert "Is a directory" in done.stderr


def test_large_rows_make_row_groups_of_a_few(tmp_path, monkeypatch):
    monkeypatch.setattr("kolk.cli.writers.ROW_GROUP_BYTES", 1)
    file = tmp_path / "pages.parquet"

    with writing(Format.PARQUET, pa.schema([("n", pa.int64())]), file) as writer:
        for number in range(3):
            writer.write(pa.record_batch({"n": [number]}))

    assert pq.read_metadata(file).num_row_groups == 3
    assert pq.read_table(file)["n"].to_pylist() == [0, 1, 2]


def test_a_table_for_people_has_numbers_to_the_right_and_nulls(ok, pages):
    lines = ok("scan", pages, "-f", "table").splitlines()

    assert lines[0].split() == ["page", "pv", "title"]
    assert lines[2].rstrip() == "/        1  home"
    assert lines[3].rstrip() == "/about   7  null"


def test_a_table_for_people_shows_200_rows_and_says_so(run, ok, pages):
    ok("put", pages, "-i", "csv", input="page\n" + "".join(f"{n:04}\n" for n in range(300)))

    some = run("scan", pages, "-f", "table")
    more = run("scan", pages, "-f", "table", "--limit", "250")

    assert len(some.stdout.splitlines()) == 2 + 200
    assert "the first 200 rows" in some.stderr
    assert len(more.stdout.splitlines()) == 2 + 250
    assert more.stderr == ""


def test_a_table_fits_the_terminal(run, ok):
    names = [f"column_{n}" for n in range(12)]
    ok("table", "create", "wide", "--columns", ", ".join(f"{name} string" for name in names), "-k", "column_0")
    ok("put", "wide", "-i", "json", input=json.dumps({name: "long text " * 5 for name in names}))

    done = run("scan", "wide", "-f", "table", env={"COLUMNS": "60"})

    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "…" in done.stdout
    assert "6 more columns do not fit" in done.stderr


def test_what_is_stored_does_not_steer_the_terminal(ok, pages):
    ok("put", pages, "-i", "json", input='{"page": "x", "title": "\\u001b[2Jgone\\nnext"}')

    shown = ok("scan", pages, "-f", "table")

    assert "\x1b" not in shown
    assert r"\x1b[2Jgone\nnext" in shown


def test_get_finds_rows_in_the_order_of_the_keys(run, pages):
    done = run("get", pages, "/about", "/nowhere", "/", "--columns", "page,pv")

    assert done.exit_code == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"page": "/about", "pv": 7},
        {"page": "/", "pv": 1},
    ]
    assert "1 of 3 keys have no row" in done.stderr


def test_get_of_nothing_ends_with_3(run, pages):
    done = run("get", pages, "/nowhere", "-f", "json")

    assert done.exit_code == 3
    assert done.stdout == ""


@pytest.mark.parametrize(
    "key",
    [
        "user=a,b,at=2026-11-15T12:00:00Z,n=5",
        "n=5,at=2026-11-15T13:00:00+01:00,user=a,b",
        '{"user": "a,b", "at": "2026-11-15T12:00:00Z", "n": 5}',
    ],
)
def test_a_key_of_several_columns_is_named_or_json(ok, key):
    ok("table", "create", "t", "--columns", "user string, at timestamp_ltz(3), n int, x int", "-k", "user,at,n")
    ok("put", "t", "-i", "csv", input='user,at,n,x\n"a,b",2026-11-15T12:00:00Z,5,1\n')

    assert json.loads(ok("get", "t", key))["x"] == 1


@pytest.mark.parametrize("key", ["5", "a=1", "a=1,b=2,c=3", "a=1,b=x", '{"a": 1}'])
def test_what_is_no_key_is_refused(run, ok, key):
    ok("table", "create", "t", "--columns", "a int, b int", "-k", "a,b")

    done = run("get", "t", key)

    assert done.exit_code == 1
    assert key in done.stderr.replace("\\", "")


@pytest.mark.parametrize("key", ["{", '{"page": 1', "page=/", "a,b"])
def test_a_key_of_one_column_is_taken_as_it_is(ok, pages, key):
    ok("put", pages, "-i", "json", input=json.dumps({"page": key}))

    assert json.loads(ok("get", pages, key))["page"] == key


@pytest.mark.parametrize("command", [["scan", "events"], ["get", "events", "1"]])
def test_a_log_table_is_read_with_tail(run, ok, command):
    ok("table", "create", "events", "--columns", "what string")

    done = run(*command)

    assert done.exit_code == 1
    assert "kolk tail events" in done.stderr


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("/nope", "there is no row of the key '/nope'\n"),
        ("page=/a b", "there is no row of the key 'page=/a b'; with one key column the value stands alone: '/a b'\n"),
    ],
)
def test_the_key_that_was_looked_for_in_vain_is_named(run, pages, key, said):
    done = run("get", pages, key)

    assert (done.exit_code, done.stderr) == (3, said)


@pytest.mark.parametrize(
    ("name", "format", "said"),
    [
        ("p.csv.gz", ["-f", "csv"], "Kolk does not compress; leave -o out and write ... -f csv | gzip > "),
        ("p.jsonl.gz", [], "-f jsonl | gzip > "),
        ("nodir/p.csv", [], "there is no folder "),
    ],
)
def test_a_file_that_cannot_be_written_as_it_is_named_is_a_usage_error(run, pages, tmp_path, name, format, said):
    done = run("scan", pages, "-o", tmp_path / name, *format)

    assert done.exit_code == 2
    assert f"-o {tmp_path / name}: " in done.stderr
    assert said in done.stderr
    assert ".partial" not in done.stderr
    assert not (tmp_path / name).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_told_of_by_its_own_name(run, pages, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)

    done = run("scan", pages, "-o", tmp_path / "locked" / "p.csv")

    assert done.exit_code == 1
    assert done.stderr.splitlines()[0].endswith("/locked/p.csv")
