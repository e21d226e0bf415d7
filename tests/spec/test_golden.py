"""A folder that the first version of the format has written: later versions read it, and go on with it."""

import datetime
import json
import runpy
import zipfile
from pathlib import Path

import pytest

import kolk
from kolk.runtime.migrations import FORMAT

GOLDEN = Path(__file__).parent.parent / "golden"
MAKER = runpy.run_path(str(GOLDEN / "make_format1.py"))
DAY = datetime.date(2026, 11, 15)
EXPECTED = json.loads((GOLDEN / "format1.json").read_text())


@pytest.fixture
def old_folder(tmp_path):
    with zipfile.ZipFile(GOLDEN / "format1.zip") as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old"


def test_a_folder_of_the_first_format_answers_as_it_did(old_folder):
    with kolk.connect(old_folder) as db:
        assert MAKER["answers"](db) == EXPECTED


def test_it_becomes_a_folder_of_the_present_format_and_stays_one(old_folder):
    assert (old_folder / "FORMAT").read_text() == "kolk 1\n"

    for _ in range(2):
        with kolk.connect(old_folder) as db:
            assert MAKER["answers"](db) == EXPECTED
        assert (old_folder / "FORMAT").read_text() == f"kolk {FORMAT}\n"


def test_its_rows_come_back_from_its_log_alone(old_folder):
    for kv in old_folder.glob("tables/*/*/*/kv"):
        for file in kv.iterdir():
            file.unlink()
        kv.rmdir()

    with kolk.connect(old_folder) as db:
        assert MAKER["answers"](db) == EXPECTED


def test_its_tables_can_be_altered_and_used_by_handles_of_both_ages(old_folder):
    with kolk.connect(old_folder) as db:
        wide, before = db.table("wide"), db.table("wide").scan().to_arrow()
        old = db.table("wide")
        wide.alter(
            [
                kolk.RenameColumn("k", "key"),
                kolk.DropColumn("c18"),
                kolk.WidenColumn("c3", "bigint"),
                kolk.WidenColumn("c5", "double"),
                kolk.WidenColumn("c7", "decimal(30, 2)"),
                kolk.WidenColumn("c8", "string"),
                kolk.AddColumn(kolk.Column("extra", "string", nullable=False, default="new"), first=True),
            ]
        )
        wide.put(wide.scan().to_arrow())
        pages = db.table("web.pages")
        pages.alter([kolk.RenameColumn("page", "url"), kolk.AddColumn(kolk.Column("clicks", "int", default=0))])
        pages.put([{"url": "/new", "day": DAY, "pv": 1, "price": None, "tag": None}])

        assert wide.schema.column("extra").id == 20
        assert set(wide.scan(["extra"]).to_arrow().column(0).to_pylist()) == {"new"}
        assert old.scan().to_arrow().drop_columns("c18").sort_by("k") == before.drop_columns("c18").sort_by("k")
        assert len(list(wide.changelog())) == len(list(old.changelog()))
        assert pages.prefix(url="/new").to_pylist()[0]["clicks"] == 0
        expected = MAKER["answers"](db)

    with kolk.connect(old_folder) as db:
        assert MAKER["answers"](db) == expected


def test_its_follower_goes_on_where_it_was(old_folder):
    with kolk.connect(old_folder) as db:
        (etl,) = db.followers()

        with db.table("web.pages").changelog(follower="etl") as rest:
            left = sum(batch.num_rows for batch in rest)

        assert left == etl.lag > 0
