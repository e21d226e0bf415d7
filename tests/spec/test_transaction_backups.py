"""Backups of a database that has transactions: what is restored serves, and remembers what was committed before."""

import kolk
from kolk.engine.backup_cut import BackupCuts
from kolk.engine.restore import restore

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")


def committed(table, version):
    with table.transaction("app", version) as tx:
        tx.put({"id": version, "v": "x"})
    return tx.verdict


def test_a_commit_in_the_middle_of_a_backup_does_not_make_it_one_that_cannot_be_served(
    folder, config, tmp_path, monkeypatch
):
    begun = BackupCuts.begun
    with kolk.connect(folder, config=config) as db:
        table = db.create_table("t", SCHEMA, buckets=2)
        committed(table, 1)

        def begun_and_then(cuts):
            found = begun(cuts)
            committed(table, 2)
            return found

        monkeypatch.setattr(BackupCuts, "begun", begun_and_then)
        db.backup(tmp_path / "backup")

    restore(tmp_path / "backup", tmp_path / "again")
    with kolk.connect(tmp_path / "again", config=config) as db:
        table = db.table("t")

        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2]
        assert [committed(table, version) for version in (1, 2, 3)] == ["old", "duplicate", "committed"]
