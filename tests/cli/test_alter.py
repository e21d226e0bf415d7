"""``kolk table alter``: columns and options of a table in use, from the shell."""

import json

import pytest


def columns(text):
    return {line["column"]: line for line in map(json.loads, text.splitlines())}


def test_columns_are_changed_all_together_and_shown(ok, pages):
    shown = columns(
        ok("table", "alter", pages, "--add", "clicks int not null default 0 after page", "--add", "at date first",
           "--drop", "title", "--rename", "pv=views", "--move", "views first", "-f", "jsonl")
    )  # fmt: skip

    assert list(shown) == ["views", "at", "page", "clicks"]
    assert shown["clicks"] == {"column": "clicks", "type": "int", "nullable": False, "default": "0", "key": False}
    assert json.loads(ok("get", pages, "/about", "-f", "jsonl")) == {
        "views": 7,
        "at": None,
        "page": "/about",
        "clicks": 0,
    }


def test_a_type_is_widened_and_a_column_made_nullable(ok):
    ok("table", "create", "t", "--columns", "k int, a int not null default 3", "--primary-key", "k")

    shown = columns(ok("table", "alter", "t", "--widen", "a=bigint", "--nullable", "a", "-f", "jsonl"))

    assert (shown["a"]["type"], shown["a"]["nullable"], shown["a"]["default"]) == ("bigint", True, "3")


def test_a_statement_alters_a_table(ok, pages):
    shown = columns(ok("table", "alter", "--ddl", f"ALTER TABLE {pages} DROP COLUMN title", "-f", "jsonl"))

    assert list(shown) == ["page", "pv"]


def test_options_are_set(ok):
    ok("table", "create", "events", "--columns", "what string")

    ok("table", "alter", "events", "--set", "table.log.ttl=7d")

    assert json.loads(ok("table", "describe", "events"))["options"] == {"table.log.ttl": "7d"}


def test_what_cannot_be_is_an_error_and_changes_nothing(run, ok, pages):
    failed = run("table", "alter", pages, "--add", "x int", "--drop", "page")

    assert failed.exit_code == 1
    assert "primary key" in failed.stderr
    assert "x" not in columns(ok("table", "alter", pages, "--move", "pv first", "-f", "jsonl"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which table"),
        (("web.pages",), "say what is to change"),
        (("web.pages", "--rename", "pv"), "--rename pv=views"),
        (("web.pages", "--drop", "pv", "--ddl", "ALTER TABLE t DROP COLUMN x"), "says everything"),
        (("--ddl", "DROP TABLE web.pages"), "not ALTER TABLE"),
        (("web.pages", "--add", "x int nonsense"), "there is no aggregate function 'nonsense'"),
        (("web.pages", "--move", "pv somewhere"), "FIRST or AFTER"),
    ],
)
def test_what_is_said_wrongly_is_told(run, pages, arguments, message):
    failed = run("table", "alter", *arguments)

    assert failed.exit_code in (1, 2)
    assert message in failed.stderr


@pytest.mark.parametrize(("format", "rows"), [("csv", "page,pv\n/new,1\n"), ("json", '{"page": "/new", "pv": 1}\n')])
def test_a_file_that_lacks_a_column_gets_its_default(ok, pages, format, rows):
    ok("table", "alter", pages, "--add", "clicks int not null default 5")

    ok("put", pages, "-i", format, input=rows)

    assert json.loads(ok("get", pages, "/new", "-f", "jsonl"))["clicks"] == 5


def test_json_lines_may_each_leave_a_column_out_that_has_a_default(ok, pages):
    ok("table", "alter", pages, "--add", "clicks int not null default 5")

    ok("put", pages, "-i", "json", input='{"page": "/a", "pv": 1, "clicks": 1}\n{"page": "/b", "pv": 1}\n')

    assert json.loads(ok("get", pages, "/b", "-f", "jsonl"))["clicks"] == 5


def test_tail_shows_all_changes_in_the_newest_schema(ok, pages):
    ok("table", "alter", pages, "--rename", "pv=views", "--add", "clicks int default 5")
    ok("put", pages, "-i", "csv", input="page,views,title\n/new,1,x\n")

    lines = [json.loads(line) for line in ok("tail", pages, "--from", "earliest", "-f", "jsonl").splitlines()]

    assert [(line["views"], line["clicks"]) for line in lines] == [(1, 5), (7, 5), (1, 5)]


def test_a_description_shows_defaults(ok, run):
    ok("table", "create", "t", "--columns", "k int, a string default 'x'", "--primary-key", "k")

    shown = run("table", "describe", "t", "-f", "table").stdout

    assert "default" in shown
    assert json.loads(ok("table", "describe", "t"))["schema"]["columns"][1]["default"] == "x"
