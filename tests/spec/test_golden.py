"""A folder that the first version of the format has written: later versions read it, and go on with it."""

import json
import runpy
import zipfile
from pathlib import Path

import pytest

import kolk

GOLDEN = Path(__file__).parent.parent / "golden"
MAKER = runpy.run_path(str(GOLDEN / "make_format1.py"))
EXPECTED = json.loads((GOLDEN / "format1.json").read_text())


@pytest.fixture
def old_folder(tmp_path):
    with zipfile.ZipFile(GOLDEN / "format1.zip") as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old"


def test_a_folder_of_the_first_format_answers_as_it_did(old_folder):
    with kolk.connect(old_folder) as db:
        assert MAKER["answers"](db) == EXPECTED


def test_its_rows_come_back_from_its_log_alone(old_folder):
    for kv in old_folder.glob("tables/*/*/*/kv"):
        for file in kv.iterdir():
            file.unlink()
        kv.rmdir()

    with kolk.connect(old_folder) as db:
        assert MAKER["answers"](db) == EXPECTED


def test_its_follower_goes_on_where_it_was(old_folder):
    with kolk.connect(old_folder) as db:
        (etl,) = db.followers()

        with db.table("web.pages").changelog(follower="etl") as rest:
            left = sum(batch.num_rows for batch in rest)

        assert left == etl.lag > 0
