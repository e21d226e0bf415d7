"""Tables are made, listed, described, emptied and dropped."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def described(ok, name):
    return json.loads(ok("table", "describe", name))


def types(ok, name):
    return {column["name"]: column["type"] for column in described(ok, name)["schema"]["columns"]}


def test_a_table_is_made_of_columns_and_options(ok):
    ok("table", "create", "web.pages", "--columns", "page string, pv bigint not null, d decimal(10, 2)",
       "--primary-key", "page", "--buckets", "4", "--merge-engine", "first_row",
       "--option", "table.changelog.image=wal")  # fmt: skip

    found = described(ok, "web.pages")

    assert found["schema"]["primary_key"] == ["page"]
    assert types(ok, "web.pages") == {"page": "string", "pv": "bigint", "d": "decimal(10, 2)"}
    assert len(found["offsets"]) == 4
    assert found["options"]["table.merge-engine"] == "first_row"
    assert found["options"]["table.changelog.image"] == "wal"


def test_a_table_without_a_key_is_a_log_table(ok):
    ok("table", "create", "events", "--columns", "what string")

    assert described(ok, "events")["schema"]["primary_key"] == []


@pytest.mark.parametrize("way", ["--ddl", "--ddl-file", "stdin"])
def test_a_statement_makes_a_table(ok, tmp_path, way):
    statement = "CREATE TABLE t (a INT, b STRING, PRIMARY KEY (a)) DISTRIBUTED INTO 2 BUCKETS"
    (tmp_path / "t.sql").write_text(statement)

    if way == "--ddl":
        ok("table", "create", "--ddl", statement)
    elif way == "--ddl-file":
        ok("table", "create", "--ddl-file", tmp_path / "t.sql")
    else:
        ok("table", "create", "--ddl-file", "-", input=statement)

    assert described(ok, "t")["buckets"] == 2


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_a_table_takes_the_columns_of_a_file(ok, tmp_path, ending):
    rows = pa.table({"id": [1, 2], "name": ["a", None], "x": [0.5, 1.5]})
    file = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(rows, file)
    elif ending == "arrow":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    elif ending == "csv":
        file.write_text("id,name,x\n1,a,0.5\n2,,1.5\n")
    else:
        file.write_text('{"id": 1, "name": "a", "x": 0.5}\n{"id": 2, "x": 1.5}\n')

    ok("table", "create", "t", "--from", file, "--primary-key", "id")
    ok("put", "t", file)

    assert types(ok, "t") == {"id": "bigint", "name": "string", "x": "double"}
    assert json.loads(ok("get", "t", "2")) == {"id": 2, "name": None, "x": 1.5}


def test_a_table_that_exists_is_left_alone_if_one_says_so(run, ok, pages):
    again = ("table", "create", pages, "--columns", "page string", "--primary-key", "page")

    assert run(*again).exit_code == 1
    ok(*again, "--if-not-exists")

    assert len(types(ok, pages)) == 3


@pytest.mark.parametrize("way", ["--columns", "--ddl"])
def test_a_table_that_was_there_is_not_told_as_made(run, way):
    statement = "CREATE TABLE t (a INT, PRIMARY KEY (a))"
    given = ["t", "--columns", "a int", "-k", "a"] if way == "--columns" else ["--ddl", statement]

    made, again = (run("table", "create", *given, "--if-not-exists") for _ in range(2))

    assert made.stderr.startswith("created table t ")
    assert again.stderr.startswith("there was a table t already, and it was left alone: ")


def test_whoever_makes_a_table_that_is_there_is_told_how_to_leave_it(run, pages):
    done = run("table", "create", pages, "--columns", "page string", "--primary-key", "page")

    assert "there is a table 'web.pages' already" in done.stderr
    assert "--if-not-exists" in done.stderr


@pytest.mark.parametrize("options", [["--yes"], []])
def test_a_table_that_is_not_there_is_not_told_as_dropped_and_nobody_is_asked(run, pages, options):
    done = run("table", "drop", "nope", "--if-exists", *options)

    assert done.exit_code == 0
    assert done.stderr == "there is no table nope; nothing was done\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["t"], "--columns"),
        (["--columns", "a int"], "name"),
        (["t", "--columns", "a int", "--ddl", "CREATE TABLE t (a INT)"], "one way"),
        (["t", "--ddl", "CREATE TABLE t (a INT)"], "leave the other options out"),
        (["--ddl", "DROP TABLE t"], "not CREATE TABLE"),
        (["t", "--columns", "a int", "--option", "x"], "KEY=VALUE"),
        (["t", "--from", "nowhere.csv"], "No such file"),
    ],
)
def test_a_table_that_makes_no_sense_is_a_usage_error(run, arguments, reason):
    done = run("table", "create", *arguments)

    assert done.exit_code == 2
    assert reason in done.stderr


def test_tables_are_listed_in_any_format(ok, pages):
    ok("table", "create", "events", "--columns", "what string", "--buckets", "2")

    rows = [json.loads(line) for line in ok("table", "list").splitlines()]
    lines = list(csv.DictReader(ok("table", "list", "-f", "csv").splitlines()))

    assert [row["table"] for row in rows] == ["events", "web.pages"]
    assert [row["primary_key"] for row in rows] == [[], ["page"]]
    assert [line["primary_key"] for line in lines] == ["", "page"]
    assert json.loads(ok("table", "list", "-f", "json")) == rows


def test_a_description_shows_columns_options_and_offsets_to_people(ok, pages):
    shown = ok("table", "describe", pages, "-f", "table")

    for word in ("web.pages", "primary key (page)", "bigint", "table.merge-engine", "bucket"):
        assert word in shown


def test_a_description_is_no_csv(run, pages):
    assert run("table", "describe", pages, "-f", "csv").exit_code == 2


@pytest.mark.parametrize("command", ["drop", "truncate"])
def test_data_is_not_removed_without_a_yes(run, ok, pages, command):
    done = run("table", command, pages)

    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert len(ok("scan", pages).splitlines()) == 2


def test_a_table_is_emptied_and_dropped(run, ok, pages):
    ok("table", "truncate", pages, "--yes")
    assert ok("scan", pages) == ""

    ok("table", "drop", pages, "--yes")
    assert run("table", "describe", pages).exit_code == 3
    assert run("table", "drop", pages, "--yes").exit_code == 3
    ok("table", "drop", pages, "--yes", "--if-exists")
