"""What a type checker and an editor are told of the package."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kolk

ROOT = Path(__file__).parents[1]
SCRIPT = """
import kolk

def calls(db: kolk.Database) -> kolk.Writer:
    kolk.aio.connect
    kolk.functions.finished
    kolk.spark.session
    return db.table("t").writer("job")

kolk.conect("./data")
"""


def test_the_package_says_that_it_has_types_where_it_is_installed_too():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]

    assert (ROOT / "src/kolk/py.typed").read_bytes() == b""
    assert settings["targets"]["wheel"] == {"packages": ["src/kolk", "src/pyspark_kolk"]}, (
        "whole folders, marker and all"
    )


@pytest.mark.long
def test_a_checker_sees_the_modules_that_are_imported_late_and_no_name_that_is_not_there(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "pyrightconfig.json").write_text('{"extraPaths": ["%s"], "typeCheckingMode": "basic"}' % (ROOT / "src"))

    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    told = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(told) == 1, done.stdout + done.stderr
    assert '"conect" is not a known attribute' in told[0]


def test_what_an_editor_offers_is_what_there_is_to_call():
    offered = dir(kolk)

    assert offered == sorted({*kolk.__all__, "aio", "functions", "spark", "__version__"})
    assert all(getattr(kolk, name) is not None for name in offered if name != "spark")


def test_what_public_calls_return_has_a_public_name():
    assert {"Bootstrap", "OwnerInfo", "ScanInfo", "Writer"} <= set(kolk.__all__)
