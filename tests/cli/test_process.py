"""What only a real process shows: pipes, exit codes, a reader that goes away, and how soon it starts."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kolk

ONLY_THE_CLI = """
import sys, types
package = types.ModuleType("kolk")      # what the library itself imports is not what is tested here
package.__path__ = [{path!r}]
sys.modules["kolk"] = package
from kolk.cli.main import app
try:
    app({arguments!r}, prog_name="kolk")
except SystemExit as end:
    print(end.code, sorted({{"pyarrow", "rocksdict", "numpy", "rich"}} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["scan", "--help"], ["scans", "--help"], ["table", "--help"]])
def test_help_comes_without_the_heavy_libraries(arguments):
    script = ONLY_THE_CLI.format(path=kolk.__path__[0], arguments=arguments)

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert "Usage: kolk" in done.stdout
    assert done.stderr == "0 []\n"


def test_ctrl_c_while_the_commands_are_imported_shows_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from kolk.cli.entry import main; main()"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (130, "")


def test_the_script_begins_where_ctrl_c_is_waited_for():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())

    assert project["project"]["scripts"] == {"kolk": "kolk.cli.entry:main"}


def test_the_version_is_told(start):
    out, _ = start("--version").communicate(timeout=60)

    assert out == f"kolk {kolk.__version__}\n"


def test_data_goes_to_stdout_and_the_rest_to_stderr(start, pages):
    out, err = start("get", pages, "/", "/nowhere").communicate(timeout=60)

    assert json.loads(out)["title"] == "home"
    assert err == "1 of 2 keys have no row\n"


def test_rows_flow_from_one_table_into_another(start, ok, pages):
    ok("table", "create", "copy", "--columns", "page string, pv bigint, title string", "-k", "page")
    out, _ = start("scan", pages, "-f", "arrow", text=False).communicate(timeout=60)

    process = start("put", "copy", text=False)
    _, err = process.communicate(out, timeout=60)

    assert process.returncode == 0, err
    assert ok("scan", "copy") == ok("scan", pages)


@pytest.mark.parametrize("format", ["jsonl", "json", "csv", "arrow", "parquet"])
def test_a_reader_that_goes_away_is_no_failure(start, ok, pages, format):
    ok("put", pages, "-i", "csv", input="page\n" + "".join(f"{n:0100}\n" for n in range(20_000)))
    process = start("scan", pages, "-f", format, text=False)

    process.stdout.read(10)
    process.stdout.close()

    assert process.wait(60) == 0
    assert process.stderr.read() == b""


def test_a_folder_that_another_process_has_is_unavailable(start, folder, pages):
    with kolk.connect(folder):
        process = start("scan", pages)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 5
    assert err.startswith("error: ")
    assert "is open in process" in err


def test_ctrl_c_during_a_put_says_what_is_durable(start, pages, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("put", pages, pipe, "-i", "json", "--batch-rows", "10000")
    with pipe.open("w") as rows:  # opens when the command does
        rows.write("".join(f'{{"page": "{n}"}}\n' for n in range(20_000)))
        rows.flush()

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert f"rows are durable; go on after them with: kolk put web.pages {pipe} -i json --skip-rows" in err


def test_colour_is_for_terminals_that_want_it(on_terminal, pages):
    _, coloured = on_terminal("scan", pages)
    _, plain = on_terminal("scan", pages, env={"NO_COLOR": "1"})

    assert "\x1b[2mnull" in coloured
    assert "null" in plain
    assert "\x1b" not in plain


@pytest.mark.parametrize(("typed", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("\n", 1, 2)])
def test_a_person_is_asked_before_rows_are_removed(on_terminal, ok, pages, typed, code, left):
    ended, seen = on_terminal("table", "truncate", pages, typed=typed)

    assert "Remove every row of web.pages? [y/N]" in seen
    assert ended == code
    assert len(ok("scan", pages).splitlines()) == left


def test_a_person_sees_how_a_put_goes_on(on_terminal, pages, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("page\n" + "".join(f"{n}\n" for n in range(1000)))

    ended, seen = on_terminal("put", pages, file, "--batch-rows", "100")

    assert ended == 0
    assert "1,000 rows" in seen
    assert "put 1,000 rows in" in seen


def test_a_person_who_forgot_the_file_is_told(on_terminal, pages):
    ended, seen = on_terminal("put", pages)

    assert ended == 2
    assert "kolk put web.pages FILE" in seen


def test_bytes_are_not_poured_over_a_terminal(on_terminal, pages):
    ended, seen = on_terminal("scan", pages, "-f", "parquet")

    assert ended == 2
    assert "-o FILE" in seen


def test_changes_are_painted_one_line_each(on_terminal, pages):
    _, seen = on_terminal("tail", pages)

    assert [line[:10] for line in seen.splitlines()] == ["\x1b[32m+I\x1b[0", "\x1b[32m+I\x1b[0"]
