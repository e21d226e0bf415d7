"""Aggregation tables at the command line: what is put, what is shown, and what is taken back."""

import json

import pytest
from tests.cli.output import lines

COLUMNS = "page string, pv bigint sum, users bigint count(input = string), top bigint max, hits bigint count_rows"


@pytest.fixture
def counts(ok):
    ok("table", "create", "web.counts", "--columns", COLUMNS, "--primary-key", "page")
    return "web.counts"


def row(ok, table, key="/"):
    return json.loads(ok("get", table, key))


def test_a_put_gives_what_the_functions_take_and_leaves_the_rest_alone(ok, counts):
    ok(
        "put",
        counts,
        input='{"page": "/", "pv": 2, "users": "ada", "top": 5}\n{"page": "/", "pv": 3, "users": "bob", "top": 1}\n',
    )
    ok("put", counts, "-i", "csv", input="page,pv\n/,10\n")

    assert row(ok, counts) == {"page": "/", "pv": 15, "users": 2, "top": 5, "hits": 3}


def test_a_file_that_lacks_a_column_does_not_touch_it_even_where_a_null_would(ok):
    ok("table", "create", "t", "-c", "k bigint, n bigint sum, last string last_value", "-k", "k")
    ok("put", "t", input='{"k": 1, "n": 1, "last": "a"}\n')

    ok("put", "t", input='{"k": 1, "n": 1}\n')
    assert json.loads(ok("get", "t", "1")) == {"k": 1, "n": 2, "last": "a"}

    ok("put", "t", input='{"k": 1, "n": 1, "last": null}\n')
    assert json.loads(ok("get", "t", "1")) == {"k": 1, "n": 3, "last": None}


def test_lines_that_give_other_columns_are_put_each_as_they_are(ok, monkeypatch):
    monkeypatch.setattr("kolk.cli.inputs.LINES_AT_ONCE", 1)
    ok("table", "create", "t", "-c", "k bigint, n bigint sum, last string last_value", "-k", "k")

    ok(
        "put",
        "t",
        "--batch-rows",
        "1",
        input='{"k": 1, "n": 1, "last": "a"}\n{"k": 1, "n": 1}\n{"k": 1, "last": "b"}\n',
    )

    assert json.loads(ok("get", "t", "1")) == {"k": 1, "n": 2, "last": "b"}


def test_a_column_that_is_named_must_be_there(run, ok, counts):
    done = run("put", counts, "--columns", "pv", input='{"page": "/"}\n')

    assert done.exit_code == 1
    assert "'pv'" in done.stderr


def test_rows_with_a_change_type_are_taken_back(ok):
    ok("table", "create", "t", "-c", "page string, pv bigint sum, users bigint count(input = string)", "-k", "page")
    ok("put", "t", input='{"page": "/", "pv": 5, "users": "ada"}\n{"page": "/", "pv": 7, "users": null}\n')

    before = '{"page": "/", "pv": 5, "users": "ada", "_change_type": "-U"}\n'
    after = '{"page": "/", "pv": 6, "users": "ada", "_change_type": "+U"}\n'
    ok("put", "t", input=before + after)
    ok("put", "t", "-i", "csv", input="page,pv,users,_change_type\n/,7,,-D\n")

    assert row(ok, "t") == {"page": "/", "pv": 6, "users": 1}


def test_what_cannot_be_taken_back_is_an_error_that_names_the_column(run, counts):
    done = run("put", counts, input='{"page": "/", "pv": 5, "users": "ada", "top": 1, "_change_type": "-D"}\n')

    assert done.exit_code == 1
    assert "the column 'top' is max, which cannot take a value back" in done.stderr


def test_the_changes_of_a_table_can_be_put_into_another(ok):
    ok("table", "create", "source", "-c", "k bigint, v string", "-k", "k")
    ok("put", "source", input='{"k": 1, "v": "a"}\n{"k": 2, "v": "b"}\n')
    ok("put", "source", input='{"k": 1, "v": "c"}\n')
    ok("put", "source", "--delete", input='{"k": 2}\n')
    ok("table", "create", "copy", "-c", "k bigint, v string", "-k", "k")
    ok("table", "create", "sums", "-c", "v string, n bigint count_rows, k bigint sum", "-k", "v")
    changes = ok("tail", "source", "--from", "earliest", "-f", "jsonl")

    ok("put", "copy", input=changes)
    ok("put", "sums", input=changes)

    assert lines(ok("scan", "copy")) == [{"k": 1, "v": "c"}]
    assert [one for one in lines(ok("scan", "sums")) if one["n"]] == [{"v": "c", "n": 1, "k": 1}]


def test_a_log_table_has_no_changes_to_take(run, ok):
    ok("table", "create", "log", "-c", "what string")

    done = run("put", "log", input='{"what": "a", "_change_type": "+I"}\n')

    assert done.exit_code == 1
    assert "there is no column '_change_type' in the table; it has what" in done.stderr


def test_states_are_merged_and_overwritten(ok, counts):
    ok("put", counts, input='{"page": "/", "pv": 1, "users": "ada", "top": 3}\n')
    state = '{"page": "/", "pv": 10, "users": 5, "top": 2, "hits": 5}\n'

    ok("put", counts, "--mode", "merge_state", input=state)
    assert row(ok, counts) == {"page": "/", "pv": 11, "users": 6, "top": 3, "hits": 6}

    ok("put", counts, "--mode", "overwrite", input=state)
    assert row(ok, counts) == json.loads(state)


@pytest.mark.parametrize("mode", ["merge_state", "accumulate"])
def test_a_default_begins_a_row_and_is_not_added_again(ok, mode):
    ok("table", "create", "t", "-c", "k bigint, n bigint sum default 100, last string last_value", "-k", "k")

    for value in "ab":
        ok("put", "t", "--mode", mode, input=f'{{"k": 1, "last": "{value}"}}\n')
        ok("put", "t", "--mode", mode, "-i", "csv", input=f"k,last\n1,{value}\n")
    ok("put", "t", "--mode", mode, input='{"k": 1, "n": 5}\n{"k": 1, "last": "c"}\n')

    assert row(ok, "t", "1") == {"k": 1, "n": 105, "last": "c"}


def test_an_unknown_mode_is_an_error(run, counts):
    done = run("put", counts, "--mode", "sideways", input="{}")

    assert done.exit_code == 2
    assert "--mode sideways: it is one of accumulate, overwrite, merge_state" in done.stderr


def test_a_description_has_the_functions_and_what_a_put_gives(ok, run, counts):
    columns = {column["name"]: column for column in json.loads(ok("table", "describe", counts))["schema"]["columns"]}
    assert columns["pv"]["agg"] == {"function": "sum"}
    assert columns["users"]["agg"] == {"function": "count", "parameters": {"input": "string"}}
    assert columns["users"]["input"] == "string"
    assert "input" not in columns["pv"]

    shown = run("table", "describe", counts, "-f", "table").stdout
    assert "put gives" in shown
    assert "count(input = string)" in shown


def test_functions_are_given_by_options_and_by_ddl_alike(ok):
    ok("table", "create", "a", "-c", "k bigint, n bigint, t string", "-k", "k", "--option", "fields.n.agg=sum",
       "--option", "fields.t.agg=listagg", "--option", "fields.t.listagg.delimiter=|")  # fmt: skip
    ok(
        "table",
        "create",
        "--ddl",
        "CREATE TABLE b (k BIGINT PRIMARY KEY, n BIGINT SUM, t STRING LISTAGG(delimiter = '|'))",
    )

    described = [json.loads(ok("table", "describe", name)) for name in "ab"]

    assert described[0]["schema"] == described[1]["schema"]
    assert described[0]["options"] == described[1]["options"]


def test_an_alter_adds_a_column_with_its_function_and_shows_it(ok, counts):
    shown = lines(ok("table", "alter", counts, "--add", "best string max_by(by = top) after top"))

    assert {one["column"]: one["aggregate"] for one in shown}["best"] == "max_by(by = top)"


def test_the_tail_shows_states_as_they_change(ok, counts):
    ok("put", counts, input='{"page": "/", "pv": 1, "users": "ada", "top": 3}\n')
    ok("put", counts, input='{"page": "/", "pv": 2, "users": null, "top": 1}\n')

    shown = [(one["_change_type"], one["pv"], one["users"]) for one in lines(ok("tail", counts, "-f", "jsonl"))]

    assert shown == [("+I", 1, 1), ("-U", 1, 1), ("+U", 3, 1)]
