"""Which database is meant, how errors end, and what status and doctor tell."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from kolk import errors
from kolk.cli.durations import from_now, moment_of, seconds_of, span
from kolk.cli.failures import Misuse, exit_code, report
from kolk.cli.grid import fitted
from kolk.cli.main import app

ROOT = Path(__file__).resolve().parents[2]


def test_a_flag_beats_the_environment_before_and_after_the_command(ok, pages, folder):
    elsewhere = {"KOLK_URL": "/nowhere"}

    assert ok("scan", pages, "--url", folder, env=elsewhere) == ok("scan", pages)
    assert ok("--url", folder, "scan", pages, env=elsewhere) == ok("scan", pages)
    assert ok("--url", "/nowhere", "scan", pages, "--url", folder, env=elsewhere) == ok("scan", pages)
    assert ok("--url", folder, "table", "list", env=elsewhere) == ok("table", "list")


def test_without_a_database_it_says_what_to_do(run):
    done = run("scan", "t", env={"KOLK_URL": None})

    assert done.exit_code == 2
    assert "--url" in done.stderr
    assert "KOLK_URL" in done.stderr


def test_a_folder_without_a_database_is_not_made_by_a_slip(run, folder):
    done = run("table", "list")

    assert done.exit_code == 3
    assert "there is no database in" in done.stderr
    assert not folder.exists()


def test_a_token_file_that_is_not_there_is_a_usage_error(run):
    done = run("table", "list", "--url", "kolk://127.0.0.1:1", "--token-file", "nowhere")

    assert done.exit_code == 2
    assert "--token-file nowhere" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["scna"], "scan"),
        (["scan"], "TABLE"),
        (["scan", "t", "--limit", "x"], "--limit"),
        (["scan", "t", "-f", "xml"], "--format"),
        (["scan", "t", "--frobnicate"], "--frobnicate"),
    ],
)
def test_a_usage_error_ends_with_2_and_shows_where_help_is(run, arguments, reason):
    done = run(*arguments)

    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert reason in done.stderr
    assert "--help" in done.stderr


def every_command(command, path=()):
    """The path of each command and group, and itself."""
    yield list(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from every_command(one, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in every_command(get_command(app))], ids=" ".join)
def test_help_has_no_words_of_python_and_cuts_no_description(ok, path):
    shown = ok(*path, "--help", env={"COLUMNS": "80"})

    assert not re.search(r"<\w+|list\[|\bPath\b|\bstr\b|\bNone\b", shown)
    assert not re.search(r"^  \w[\w-]* .*\.\.\.$", shown.partition("Commands:")[2], flags=re.MULTILINE)


@pytest.mark.parametrize("command", [["status"], ["table", "describe"]])
def test_help_offers_no_format_that_is_refused(ok, command):
    shown = ok(*command, "--help")

    assert "table, json or jsonl." in shown
    assert "parquet" not in shown


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (["-f", "xml"], "'xml' is not one of 'table', 'json', 'jsonl', 'csv', 'arrow', 'parquet'."),
        (["--limit", "x"], "write a whole number"),
        (["--limit", "-1"], "it should be greater than or equal to 0"),
    ],
)
def test_a_value_that_is_not_taken_is_told_in_plain_words(run, option, reason):
    done = run("scan", "t", *option)

    assert done.stderr.splitlines()[0].endswith(f": {reason}")
    assert "Value error" not in done.stderr


@pytest.mark.parametrize("group", [[], ["table"], ["token"]])
def test_a_group_alone_shows_its_help(run, group):
    done = run(*group)

    assert done.exit_code == 2
    assert done.stderr.startswith("Usage: kolk")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRows("x"), 1),
        (errors.Corrupted("x"), 1),
        (errors.TableNotFound("x"), 3),
        (errors.PermissionDenied("x"), 4),
        (errors.Unauthenticated("x"), 4),
        (errors.FolderInUse("x"), 5),
        (errors.Unreachable("x"), 5),
    ],
)
def test_every_kind_of_error_has_its_number(error, code):
    assert exit_code(error) == code


def test_a_table_that_is_not_there_is_not_found(run, pages):
    done = run("scan", "web.page")

    assert done.exit_code == 3
    assert done.stderr.startswith("error: ")


def test_the_traceback_is_for_those_who_ask(run, pages):
    assert "Traceback" not in run("scan", "nope").stderr
    assert "Traceback" in run("scan", "nope", "--debug").stderr
    assert "Traceback" in run("--debug", "scan", "nope").stderr


def test_an_error_that_nobody_foresaw_asks_for_a_report(capsys):
    assert report(RuntimeError("odd"), debug=False) == 1
    assert "RuntimeError: odd" in capsys.readouterr().err


def test_the_status_of_a_folder_has_its_tables(ok, pages, folder):
    found = json.loads(ok("status"))

    assert found["target"] == str(folder)
    assert found["durability"] == "machine"
    assert found["tables"] == [{"table": "web.pages", "buckets": 1, "changes": 2, "ends": {"0": 2}}]
    assert "web.pages" in ok("status", "-f", "table")


def test_a_doctor_looks_at_everything_and_leaves_nothing(ok, folder):
    folder.mkdir()

    found = {one["check"]: one for one in map(json.loads, ok("doctor", folder).splitlines())}

    assert set(found) >= {"python", "pyarrow", "rocksdict", "folder", "fsync", "disk", "open files", "clock"}
    assert "p99" in found["fsync"]["found"]
    assert list(folder.iterdir()) == []
    assert "rocksdict" in ok("doctor", folder, "-f", "table")


def test_a_doctor_makes_no_folder(ok, folder):
    ok("doctor", folder)

    assert not folder.exists()


def test_a_doctor_finds_that_a_file_is_no_folder_and_that_no_server_answers(run, tmp_path):
    (tmp_path / "file").touch()

    of_file = run("doctor", tmp_path / "file")
    of_server = run("doctor", env={"KOLK_URL": "kolk://127.0.0.1:1"})

    assert of_file.exit_code == 1
    assert "is a file" in of_file.stdout
    assert of_server.exit_code == 1
    assert "127.0.0.1:1" in of_server.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_doctor_finds_a_folder_that_cannot_be_written(run, folder):
    folder.mkdir(mode=0o500)

    assert run("doctor", folder).exit_code == 1


def test_durations_are_read_and_shown():
    assert [seconds_of(text) for text in ("10s", "5m", "2h", "30d", "1w")] == [10, 300, 7200, 2_592_000, 604_800]
    assert [span(seconds) for seconds in (0, 59.9, 3_661, 90_000)] == ["0 s", "59 s", "1 h 1 m", "1 d 1 h"]
    assert moment_of("-10m", 1_000_000).timestamp() == 400
    assert moment_of("1970-01-01T00:00:10Z", 0).timestamp() == 10
    with pytest.raises(Misuse):
        seconds_of("soon")
    with pytest.raises(Misuse, match="no place to start"):
        moment_of("-999999999w", 0)


def test_moments_are_told_from_now():
    assert [from_now(seconds) for seconds in (-190, -0.5, 0, 518_500)] == ["3 m ago", "0 s ago", "0 s ago", "in 6 d"]


@pytest.mark.parametrize(
    ("natural", "room", "widths"),
    [
        ([30, 10, 10], 80, [30, 10, 10]),
        ([30, 40, 40], 80, [30, 22, 22]),
        ([70, 40], 80, [70]),
        ([100, 40], 80, [80]),
        ([], 80, []),
    ],
)
def test_the_first_column_of_a_list_gives_way_to_nothing_but_the_edge(natural, room, widths):
    assert fitted(natural, room, keep_first=True) == widths


def test_the_page_of_all_settings_is_current():
    check = [sys.executable, str(ROOT / "scripts" / "configuration.py"), "--check"]

    done = subprocess.run(check, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["serve", "token list", "token create --name x --allow *=all", "doctor"])
def test_an_address_is_no_folder(run, command, tmp_path, monkeypatch):
    """As a path it would be the name of a new one, and a token in it one that no server knows."""
    monkeypatch.chdir(tmp_path)

    done = run(*command.split(), "kolk://127.0.0.1:9123")

    assert done.exit_code == 2
    assert "is the address of a server; give the path of a folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["localhost:9123", "kolk:/127.0.0.1:9123", "kolk:127.0.0.1:9123", "[::1]:9123"])
@pytest.mark.parametrize(
    "command", [["serve"], ["table", "list", "--url"], ["table", "create", "t", "--columns", "k int", "--url"]]
)
def test_an_address_that_lacks_its_beginning_is_no_new_folder(run, command, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = run(*command, target)

    assert done.exit_code == 2
    assert f"address of a server, which is kolk://{target.removeprefix('kolk:').lstrip('/')}" in done.stderr
    assert list(tmp_path.iterdir()) == []
