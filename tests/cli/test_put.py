"""Rows go in from every format, typed by the table, and a failure says how to go on."""

import gzip
import io
import json
from collections import deque

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kolk
from kolk.cli.inputs import Shape, opened
from kolk.cli.values import csv_lines, json_lines

ROWS = pa.table({"page": ["/", "/about", "/new"], "pv": [5, None, 7], "title": ["home", "about us", None]})


def written(rows: pa.Table, format: str) -> bytes:
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(rows, sink)
    elif format == "arrow":
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
    elif format == "arrow file":
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    elif format == "csv":
        sink.write(b"page,pv,title\n/,5,home\n/about,,about us\n/new,7,\n")
    else:
        sink.write("".join(json.dumps(row) + "\n" for row in rows.to_pylist()).encode())
    return sink.getvalue()


def scanned(ok, table):
    return sorted((json.loads(line) for line in ok("scan", table).splitlines()), key=lambda row: row["page"])


FORMATS = [("parquet", "parquet"), ("arrow", "arrow"), ("arrow file", "feather"), ("csv", "csv"), ("json", "jsonl")]


@pytest.mark.parametrize(("format", "ending"), FORMATS)
def test_a_file_is_read_by_its_ending(ok, pages, tmp_path, format, ending):
    (tmp_path / f"rows.{ending}").write_bytes(written(ROWS, format))

    ok("put", pages, tmp_path / f"rows.{ending}")

    assert scanned(ok, pages) == ROWS.to_pylist()


@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow file", "json"])
def test_a_pipe_is_read_by_its_first_bytes(ok, pages, format):
    ok("put", pages, input=written(ROWS, format))

    assert scanned(ok, pages) == ROWS.to_pylist()


def test_a_pipe_of_csv_needs_to_be_named(run, ok, pages):
    unnamed = run("put", pages, input=written(ROWS, "csv"))
    ok("put", pages, "-", "-i", "csv", input=written(ROWS, "csv"))

    assert unnamed.exit_code == 2
    assert "--input-format" in unnamed.stderr
    assert scanned(ok, pages) == ROWS.to_pylist()


def test_a_packed_file_is_unpacked(ok, pages, tmp_path):
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(written(ROWS, "csv")))

    ok("put", pages, tmp_path / "rows.csv.gz")

    assert scanned(ok, pages) == ROWS.to_pylist()


def test_the_last_line_says_how_much_was_put(run, pages):
    done = run("put", pages, "-i", "csv", "--batch-rows", "2", input=written(ROWS, "csv"))

    assert done.stdout == ""
    assert done.stderr.startswith("put 3 rows in ")
    assert run("put", pages, "-i", "csv", "-q", input=written(ROWS, "csv")).stderr == ""


def test_nothing_in_csv_is_null_and_quotes_are_an_empty_text(ok, pages):
    ok("put", pages, "-i", "csv", input='page,pv,title\na,"",""\nb,,\n')

    assert json.loads(ok("get", pages, "a")) == {"page": "a", "pv": None, "title": ""}
    assert json.loads(ok("get", pages, "b")) == {"page": "b", "pv": None, "title": None}


def test_a_column_that_the_file_lacks_is_null(ok, pages):
    ok("put", pages, "-i", "csv", input="pv,page\n9,/about\n")
    ok("put", pages, "-i", "json", input='{"page": "x", "pv": 1}\n\n{"page": "y", "title": "t"}\n')

    assert json.loads(ok("get", pages, "/about")) == {"page": "/about", "pv": 9, "title": None}
    assert json.loads(ok("get", pages, "x")) == {"page": "x", "pv": 1, "title": None}
    assert json.loads(ok("get", pages, "y")) == {"page": "y", "pv": None, "title": "t"}


def test_some_columns_are_updated_and_the_others_stay(ok, pages):
    ok("put", pages, "-i", "csv", "--columns", "pv", input="page,pv,title\n/,100,ignored\n")

    assert json.loads(ok("get", pages, "/")) == {"page": "/", "pv": 100, "title": "home"}


def test_keys_in_a_file_are_deleted(run, ok, pages):
    done = run("put", pages, "-i", "csv", "--delete", input="page\n/\n/nowhere\n")

    assert done.stderr.startswith("deleted the rows of 2 keys")
    assert [row["page"] for row in scanned(ok, pages)] == ["/about"]


def test_columns_of_keys_in_a_file_are_cleared_and_told_as_such(run, ok, pages):
    done = run("put", pages, "-i", "csv", "--delete", "--columns", "pv", input="page\n/\n")

    assert done.stderr.startswith("cleared pv for 1 key in")
    assert json.loads(ok("get", pages, "/")) == {"page": "/", "pv": None, "title": "home"}


@pytest.mark.parametrize(
    ("format", "text", "reason"),
    [
        ("csv", "page,pv\n/a,1\n/b,x\n", "stdin, row 2: pv is a bigint, not 'x'"),
        ("csv", "page,views\n/a,1\n", "there is no column 'views'"),
        ("csv", "page,pv,pv\n/a,1,2\n", "stdin names the column 'pv' twice"),
        ("csv", "pv\n1\n", "no column 'page', which may not be null"),
        ("csv", "page,pv\n/a\n", "stdin cannot be read as csv"),
        ("json", '{"page": "/a", "pv": 1}\n{"page": "/b", "pv": "x"}\n', "stdin, row 2: pv is a bigint, not 'x'"),
        ("json", '{"page": "/a"}\n{"page": "/b", "views": 1}\n', "row 2: there is no column 'views'"),
        ("json", '{"page": 5}\n', "page is a string, not 5"),
        ("json", '{"page": "/a"}\n{oops\n', "line 2 is not JSON"),
        ("json", "[1]\n", "line 1: write one JSON object per line"),
        ("json", '[\n{"page": "/a"}\n]\n', "it looks like a JSON array"),
        ("json", '[{"page": "/a"}]\n', "write one object per line, as -f jsonl does"),
        ("parquet", "PAR1 but no more", "stdin cannot be read as parquet"),
        ("arrow", "nothing of the kind", "stdin cannot be read as arrow"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_their_place(run, ok, pages, format, text, reason):
    done = run("put", pages, "-i", format, input=text)

    assert done.exit_code == 1
    assert reason in done.stderr
    assert len(scanned(ok, pages)) == 2


def test_a_failure_midway_says_what_is_durable_and_how_to_go_on(run, ok, pages, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("page,pv\n" + "".join(f"p{n},{'x' if n == 7 else n}\n" for n in range(10)))

    failed = run("put", pages, file, "--batch-rows", "3")
    file.write_text(file.read_text().replace("x", "7"))
    resumed = run("put", pages, file, "--batch-rows", "3", "--skip-rows", "6")

    assert failed.exit_code == 1
    assert "rows.csv, row 8: pv is a bigint, not 'x'" in failed.stderr
    assert f"6 rows are durable; go on after them with: kolk put {pages} {file} --skip-rows 6" in failed.stderr
    assert resumed.stderr.startswith("put 4 rows")
    assert len(scanned(ok, pages)) == 12


def test_the_command_to_go_on_with_names_the_database_that_was_named(run, folder, pages, tmp_path):
    """In the environment there may be another one."""
    file = tmp_path / "rows.csv"
    file.write_text("page,pv\n/,1\n/about,x\n")

    done = run("put", pages, file, "--batch-rows", "1", "--url", folder)

    assert f"kolk put {pages} {file} --url {folder} --skip-rows 1" in done.stderr


def test_the_command_to_go_on_with_is_the_same_but_for_the_skipped_rows(run, pages, tmp_path):
    file = tmp_path / "my rows"
    file.write_text("page,pv\n/,1\n/about,x\n")

    done = run("put", pages, file, "-i", "csv", "--columns", "pv", "--batch-rows", "1")

    assert f"kolk put {pages} '{file}' -i csv --columns pv --skip-rows 1" in done.stderr


def test_a_file_that_is_not_there_is_a_usage_error(run, pages):
    done = run("put", pages, "nowhere.csv")

    assert done.exit_code == 2
    assert "nowhere.csv: No such file" in done.stderr


def test_an_empty_file_puts_nothing(ok, pages):
    ok("put", pages, "-i", "csv", input="")
    ok("put", pages, "-i", "json", input="")

    assert len(scanned(ok, pages)) == 2


def test_long_values_are_put_in_pieces_that_a_server_takes(ok, run):
    ok("table", "create", "big", "--columns", "id int, text string", "--primary-key", "id")
    lines = "".join(f'{{"id": {n}, "text": "{"x" * 2_000_000}"}}\n' for n in range(20))

    done = run("put", "big", "-i", "json", input=lines)

    assert done.exit_code == 0, done.stderr
    assert len(ok("scan", "big", "--columns", "id").splitlines()) == 20


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "json"])
def test_of_a_file_with_large_rows_no_more_is_read_than_is_put_next(tmp_path, monkeypatch, format):
    monkeypatch.setattr("kolk.cli.inputs.BLOCK_BYTES", 2**18)
    monkeypatch.setattr("kolk.cli.inputs.PIECE_BYTES_MAX", 2**20)
    schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("text", "string")], "id")
    batches = [pa.record_batch({"id": [n], "text": [f"{n:04}" * 25_000]}, schema.arrow) for n in range(200)]
    file = tmp_path / f"rows.{format}"
    if format == "parquet":
        pq.write_table(pa.Table.from_batches(batches), file, compression="none")
    elif format == "arrow":
        with pa.ipc.new_stream(file, schema.arrow) as writer:
            deque(map(writer.write_batch, batches), maxlen=0)
    else:
        lines = csv_lines if format == "csv" else json_lines
        file.write_bytes((b"id,text\n" if format == "csv" else b"") + b"".join(map(lines, batches)))

    before = pa.total_allocated_bytes()
    with opened(str(file), None) as source:
        pieces, ids = source.pieces(Shape(known=schema.names, wanted=schema.columns), rows=50_000), []
        for piece in pieces:
            assert piece.nbytes <= 2**20
            assert pa.total_allocated_bytes() - before < 2**23
            ids += piece["id"].to_pylist()

    assert ids == list(range(200))


def test_rows_of_one_file_may_differ_in_size(tmp_path, monkeypatch):
    monkeypatch.setattr("kolk.cli.inputs.PIECE_BYTES_MAX", 2**20)
    rows = pa.table({"id": range(1_000), "text": ["x" * 200_000] * 50 + ["x"] * 950})
    pq.write_table(rows, tmp_path / "rows.parquet")

    with opened(str(tmp_path / "rows.parquet"), None) as source:
        shape = Shape(known=["id", "text"], wanted=[kolk.Column("id", "bigint"), kolk.Column("text", "string")])
        pieces = list(source.pieces(shape, rows=1_000))

    assert max(piece.nbytes for piece in pieces) <= 2**20
    assert pa.concat_tables(pieces).equals(rows)


def test_a_line_that_never_ends_is_not_read_to_its_end(run, pages, monkeypatch):
    monkeypatch.setattr("kolk.cli.inputs.LINE_BYTES_MAX", 1_000)

    done = run("put", pages, "-i", "json", input="[" + '{"page": "/", "pv": 1},' * 100)

    assert done.exit_code == 1
    assert "line 1 has more than 1,000 bytes; it looks like a JSON array, as -f json writes it" in done.stderr
