"""kill -9 in the middle of a backup and of a restore: what is left is refused, and the database is as it was."""

import json
import subprocess
import sys

import pytest

import kolk
from kolk.engine.restore import restore
from kolk.errors import InvalidArgument, NotFound

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")
EVENTS = kolk.Schema([kolk.Column("n", "bigint")])
CONFIG = kolk.EngineConfig(durability="process")
WORKER = """
import json, os, signal, sys
from pathlib import Path
import kolk
from kolk.engine.database import Engine
from kolk.engine.restore import restore
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng

what, source, target, last = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
steps = 0

def counted(name):
    real = getattr(OsDisk, name)
    def call(self, path, *rest):
        global steps
        if str(rest[0] if name == "link" else path).startswith(str(target)):
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(self, path, *rest)
    return call

changes = ("make_folder", "open_append", "replace", "remove", "sync_folder", "link")
Dying = type("Dying", (OsDisk,), {name: counted(name) for name in changes})
if what == "backup":
    engine = Engine(Folder(source), kolk.EngineConfig(durability="process"), disk=Dying())
    with kolk.Database(engine, engine.close, Rng()) as db:
        db.backup(target)
else:
    restore(source, target, disk=Dying())
print(json.dumps(steps))
"""
PLACES = [0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0]
"""Where to die: from the first thing that is done to the target to the last."""


@pytest.fixture
def data(tmp_path):
    """A database with rows and events."""
    with kolk.connect(tmp_path / "data", config=CONFIG) as db:
        db.create_table("rows", SCHEMA, buckets=2).put([{"id": n, "v": str(n)} for n in range(100)])
        events = db.create_table("events", EVENTS)
        for n in range(5):
            events.put([{"n": n}])
    return tmp_path / "data"


def work(what, source, target, last=0):
    command = [sys.executable, "-c", WORKER, what, str(source), str(target), str(last)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def died_at(what, source, target, place):
    """Let a process die at a place on its way, and see that it did."""
    whole = work(what, source, target.with_name(f"{target.name}-whole"))
    assert whole.returncode == 0, whole.stderr
    steps = json.loads(whole.stdout)
    done = work(what, source, target, max(round(place * steps), 1))
    assert done.returncode == -9, done.stderr


def seen(folder):
    with kolk.connect(folder, config=CONFIG) as db:
        rows = db.table("rows").scan().to_arrow().num_rows
        return rows, sorted(row["n"] for batch in db.table("events").changelog() for row in batch.to_pylist())


@pytest.mark.parametrize("place", PLACES)
def test_a_backup_that_is_killed_is_none_and_the_database_goes_on(data, tmp_path, place):
    died_at("backup", data, tmp_path / "b", place)

    is_whole = (tmp_path / "b" / "BACKUP").exists()
    if is_whole:  # the last thing is to make the name of that file durable
        assert place == 1.0
    else:
        with pytest.raises(NotFound, match="no backup"):
            restore(tmp_path / "b", tmp_path / "restored")
        assert not (tmp_path / "restored").exists()
    with kolk.connect(data, config=CONFIG) as db:
        if (tmp_path / "b").exists() and any((tmp_path / "b").iterdir()):
            with pytest.raises(InvalidArgument, match="holds a backup" if is_whole else "was killed, remove it"):
                db.backup(tmp_path / "b")
        assert list((data / "checkpoints").iterdir()) == []
        db.backup(tmp_path / "c")
    restore(tmp_path / "c", tmp_path / "restored")
    assert seen(tmp_path / "restored") == seen(data) == (100, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("place", PLACES)
def test_a_restore_that_is_killed_leaves_no_database(data, tmp_path, place):
    with kolk.connect(data, config=CONFIG) as db:
        db.backup(tmp_path / "b")

    died_at("restore", tmp_path / "b", tmp_path / "restored", place)

    there = tmp_path / "restored"
    if (there / "FORMAT").exists():
        assert place == 1.0
        assert seen(there) == (100, [0, 1, 2, 3, 4])
        return
    if there.exists() and any(there.iterdir()):
        with pytest.raises(InvalidArgument, match="no Kolk data"):
            kolk.connect(there, config=CONFIG)
        with pytest.raises(InvalidArgument, match="was killed, remove it"):
            restore(tmp_path / "b", there)
    restore(tmp_path / "b", tmp_path / "again")
    assert seen(tmp_path / "again") == (100, [0, 1, 2, 3, 4])
