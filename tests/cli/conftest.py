"""The command line over a real folder: in this process for most tests, as a process of its own for the others."""

import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import kolk
from kolk.cli.main import app

PAGES = "page string, pv bigint, title string"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def run(folder):
    """Run a command: ``run("scan", "web.pages")``. What it wrote is in ``stdout`` and ``stderr``."""

    def call(*arguments, input=None, env=None):
        given = {"KOLK_URL": str(folder), "KOLK_TOKEN": None, "COLUMNS": None, **(env or {})}
        return CliRunner(env=given).invoke(app, [str(one) for one in arguments], input=input, prog_name="kolk")

    return call


@pytest.fixture
def ok(run):
    """The same, for commands that must succeed; the answer is what they wrote to stdout."""

    def call(*arguments, **options):
        done = run(*arguments, **options)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture
def pages(ok):
    """A table of pages with two rows."""
    ok("table", "create", "web.pages", "--columns", PAGES, "--primary-key", "page")
    ok("put", "web.pages", "-i", "csv", input="page,pv,title\n/,1,home\n/about,7,\n")
    return "web.pages"


@pytest.fixture
def db(folder, pages):
    """The folder of the commands, in this process: so they see what is open, leased or staged."""
    with kolk.connect(folder) as database:
        yield database


@pytest.fixture
def start(folder):
    """Start a command as a process, with pipes."""
    started = []

    def call(*arguments, **options):
        environment = {**os.environ, "KOLK_URL": str(folder)}
        command = [sys.executable, "-m", "kolk.cli.main", *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment, **{**pipes, **options})
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def on_terminal(folder):
    """Run a command on a terminal of its own, as a person does; the answer is its exit code and what one sees."""

    def call(*arguments, typed="", env=None):
        environment = {**os.environ, "KOLK_URL": str(folder), "TERM": "xterm", "COLUMNS": "80", **(env or {})}
        command = [sys.executable, "-m", "kolk.cli.main", *map(str, arguments)]
        here, there = pty.openpty()
        process = subprocess.Popen(command, env=environment, stdin=there, stdout=there, stderr=there)
        os.close(there)
        os.write(here, typed.encode())
        seen = b""
        try:
            while piece := os.read(here, 65_536):
                seen += piece
        except OSError:  # how Linux says that nobody writes any more
            pass
        os.close(here)
        return process.wait(60), seen.decode().replace("\r\n", "\n")

    return call
