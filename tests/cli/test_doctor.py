"""What a doctor finds in the files of a database, and of the owners in it, and that it leaves them as they are."""

import json

import pytest
from tests.engine.surgery import Patient
from tests.spec.owned import TTL, open_rack

import kolk
from kolk.cli import soundness
from kolk.cli.upkeep import of_database
from kolk.model.ids import TransactionTag


@pytest.fixture
def patient(folder, pages):
    with kolk.connect(folder) as db:
        table = db.table("web.pages")
        with table.transaction("nightly", 1) as tx:
            tx.put({"page": "/", "pv": 5, "title": None})
        writer = table.writer(owner="hourly", columns=["pv"])
        writer.put({"page": "/", "pv": 6})
        writer.commit()
        writer.put({"page": "/", "pv": 7})
        return Patient(folder, table.info)


def findings(done):
    return {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_doctor_sees_that_catalog_logs_and_rows_agree(run, ok, folder, patient):
    found = findings(run("doctor", folder))

    assert found["consistency"]["state"] == "ok"
    assert "1 bucket, 4 frames" in found["consistency"]["found"]
    assert "catalog, logs and rows agree" in found["consistency"]["found"]
    assert found["owners"]["state"] == "ok"
    assert "consistency" in ok("doctor", folder, "-f", "table")


def test_a_doctor_says_what_does_not_hold_and_opens_nothing(run, folder, patient):
    patient.append(TransactionTag(9, 0))
    patient.append(TransactionTag(1, 0))
    before = files(folder)

    done = run("doctor", folder)

    found = findings(done)
    assert done.exit_code == 1
    assert (found["catalog"]["state"], found["commits"]["state"]) == ("fail", "fail")
    assert "bucket 0 of web.pages" in found["catalog"]["found"]
    assert "restore all of it from one backup" in found["catalog"]["next_step"]
    assert found["database"]["found"].startswith("it was not opened")
    assert "snapshots" not in found
    assert files(folder) == before


def test_a_doctor_leaves_the_files_of_an_open_database_alone(run, folder, patient):
    with kolk.connect(folder):
        found = findings(run("doctor", folder))["consistency"]

    assert found["state"] == "ok"
    assert "is open in a process" in found["found"]


def test_nobody_opens_a_folder_while_a_doctor_reads_it(folder, patient):
    from kolk.runtime.looking import unused

    with unused(folder), unused(folder), pytest.raises(kolk.errors.FolderInUse):
        kolk.connect(folder)
    kolk.connect(folder).close()


def test_a_doctor_reads_large_logs_only_when_told_to(run, folder, patient, monkeypatch):
    monkeypatch.setattr(soundness, "LOGS_BYTES_USUAL", 10)
    patient.append(TransactionTag(1, 0))

    usual = run("doctor", folder)
    deep = run("doctor", folder, "--deep")

    assert usual.exit_code == 0
    assert "kolk doctor --deep" in findings(usual)["consistency"]["next_step"]
    assert (deep.exit_code, findings(deep)["commits"]["state"]) == (1, "fail")


def test_a_doctor_finds_owners_that_are_gone_and_keep_others_out(folder):
    with open_rack(folder) as rack:
        rack.create(buckets=1).begin().put({1: {"pv": 1}})
        live = dict(of_database(rack.db))["owners"]
        rack.clock.advance(seconds=TTL + 1)
        gone = dict(of_database(rack.db))["owners"]

    assert (live.state, live.found) == ("ok", "columns are held by 1 owner, 1 live")
    assert gone.state == "warn"
    assert "kolk lock release" in gone.next_step
