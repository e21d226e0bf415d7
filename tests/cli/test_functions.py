"""``kolk functions``, and tables of users' functions at the command line."""

import json
import subprocess
import sys

import pytest

from kolk.model import functions
from kolk.model.function_table import entries

MODULE = """
import kolk

class Longest:
    "The longest text."
    types = "string"
    idempotent = True

    def init(self):
        return ""

    def accumulate(self, state, value):
        return max(state, value, key=len)

    merge = accumulate

kolk.register_aggregate("longest", Longest, version=4)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(functions, "_registered", {})
    (tmp_path / "kolk_test_longest.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "kolk_test_longest"
    sys.modules.pop("kolk_test_longest", None)


def test_a_pipe_has_all_of_every_function(ok):
    rows = [json.loads(line) for line in ok("functions").splitlines()]

    assert [row["name"] for row in rows] == [function.name for function in functions.FUNCTIONS]
    (listagg,) = [row for row in rows if row["name"] == "listagg"]
    assert listagg["aliases"] == ["string_agg", "group_concat"]
    assert listagg["types"] == ["string", "char"]
    assert (listagg["idempotent"], listagg["retract"], listagg["order"]) == (False, "no", "of the puts")
    assert listagg["parameters"][0] == "delimiter: a text of one character at least; , by default"


def test_everything_is_said_of_every_function():
    for entry in entries():
        assert entry.summary.endswith("."), entry.name
        assert "\n" not in entry.summary
        assert all((entry.types, entry.input, entry.nulls, entry.size)), entry.name


def test_what_a_function_takes_is_derived_from_it():
    found = {entry.name: entry for entry in entries()}

    assert found["sum"].input == "the column's type"
    assert found["array_agg"].input == "the type of its items; another with the parameter input"
    assert found["avg"].input == "the type of its sum"
    assert found["histogram"].input == "double; another with the parameter input"
    assert found["array_agg"].retract == "yes, without distinct and max_size"
    assert found["last_value"].types == ("any",)


def test_a_terminal_has_a_table_and_of_functions_by_name_all_there_is(run):
    overview = run("functions", "-f", "table", env={"COLUMNS": "120"})
    told = run("functions", "string-agg", "sum", "-f", "table", env={"COLUMNS": "120"})

    assert "numbers, text, times" in overview.stdout
    assert "parameter delimiter" in told.stdout
    assert "parameter overflow" in told.stdout


def test_a_function_that_is_not_there_ends_with_3(run):
    done = run("functions", "longest")

    assert done.exit_code == 3
    assert "there is no aggregate function longest" in done.stderr


def test_loaded_modules_are_shown_and_used(ok, run, module):
    (row,) = [json.loads(line) for line in ok("functions", "longest", "--load", module).splitlines()]
    assert (row["version"], row["summary"], row["types"]) == (4, "The longest text.", ["string"])

    ok("table", "create", "t", "-c", "k bigint, word string longest", "-k", "k", "--load", module)
    ok("put", "t", "--load", module, input='{"k": 1, "word": "abc"}\n{"k": 1, "word": "ab"}\n')

    assert json.loads(ok("get", "t", "1", env={"KOLK_LOAD": module})) == {"k": 1, "word": "abc"}


def test_without_the_module_a_table_is_described_and_not_read(ok, run, folder, module, monkeypatch):
    ok("table", "create", "t", "-c", "k bigint, word string longest", "-k", "k", "--load", module)
    monkeypatch.setattr(functions, "_registered", {})

    shown = run("table", "describe", "t", "-f", "table")
    read = run("scan", "t")

    assert shown.exit_code == 0
    assert "longest(version = 4)" in shown.stdout
    assert "no aggregate function 'longest'" in shown.stderr
    assert read.exit_code == 1
    assert "kolk serve --load MODULE" in read.stderr
    assert "not all of it could be looked at" not in run("doctor", folder).stdout
    ok("table", "drop", "t", "--yes")


def test_a_module_in_the_folder_one_stands_in_is_found(tmp_path, folder):
    (tmp_path / "kolk_test_longest.py").write_text(MODULE)
    command = [sys.executable, "-P", "-m", "kolk.cli.main", "functions", "longest", "--load", "kolk_test_longest"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "longest"


def test_a_module_that_is_not_there_is_an_error_that_names_it(run):
    done = run("functions", "--load", "kolk_no_such_module")

    assert done.exit_code == 1
    assert "kolk_no_such_module" in done.stderr


def test_a_list_cuts_no_name_however_narrow_the_terminal_is(ok):
    shown = ok("functions", "-f", "table", env={"COLUMNS": "60"})

    assert [line.split()[0] for line in shown.splitlines()[2:]] == [each.name for each in entries()]
