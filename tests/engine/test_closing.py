"""The end of a database: in the middle of anything, and when something fails or is interrupted on the way there."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.engine.closing_play import CALLS

import kolk
from kolk.client.database import Database
from kolk.engine.backup import Backups
from kolk.engine.database import Engine
from kolk.engine.leases import Leases
from kolk.engine.sessions import ScanSessions
from kolk.engine.snapshots import Snapshots
from kolk.engine.stagings import Stagings
from kolk.engine.tablets import Tablets
from kolk.engine.taking import Taking
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng

FULL = os.environ.get("KOLK_FULL") == "1"
ROOT = Path(__file__).parents[2]
SCHEMA = kolk.Schema([kolk.Column("id", "int")], "id")
CONFIG = kolk.EngineConfig(durability="process", kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22)
SIGNALLED = """
import signal, sys, kolk
from kolk.errors import KolkError
from kolk.runtime.rng import Rng

class Signalling:
    def __init__(self, lock):
        self.lock = lock
    def __enter__(self):
        self.lock.__enter__()
        signal.raise_signal(signal.SIGTERM)
    def __exit__(self, *error):
        self.lock.__exit__(*error)

db = kolk.connect(sys.argv[1])
table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
table.put({"id": 1})
def close(*_):
    owner.__dict__[name] = lock
    db.close()
signal.signal(signal.SIGTERM, close)
engine = db._service
OWNERS = {
    "meta": (engine._meta, "_lock", lambda: db.create_table("u", table.schema)),
    "tablets": (engine._tablets, "_mutex", lambda: table.put({"id": 2})),
    "readers": (engine._tablets.opened()[0]._readers, "_mutex", lambda: table.get_one(id=1)),
    "stagings": (engine.transactions.stagings, "_lock", lambda: db.transaction("a", 1).put({"id": 2}, table="t")),
}
owner, name, call = OWNERS[sys.argv[2]]
lock = owner.__dict__[name]
owner.__dict__[name] = Signalling(lock)
try:
    call()
except KolkError as error:
    print(type(error).__name__)
with kolk.connect(sys.argv[1]) as db:
    print(db.table("t").scan().to_arrow().num_rows, len(db.tables()))
"""


def _run(*command):
    """What a program prints, which is not to wait for itself for ever."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=False, capture_output=True, text=True, timeout=3_600 if FULL else 60
    )
    assert not done.returncode, done.stderr
    return done.stdout.split()


# --- in the middle of anything


@pytest.mark.parametrize("lock", ["meta", "tablets", "readers", "stagings"])
def test_a_signal_handler_may_close_the_database_while_its_own_thread_has_a_lock(tmp_path, lock):
    told = _run("-c", SIGNALLED, str(tmp_path / "data"), lock)

    assert told == ["Closed", "1", "1"]


@pytest.mark.timeout(3_600 if FULL else 120)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_closed_under_is_told_and_leaves_nothing_open_and_nothing_broken(tmp_path, call):
    _run("-m", "tests.engine.closing_play", call, "13" if FULL else "997", str(tmp_path))


@pytest.mark.parametrize("look", ["listed", "reap", "staged"])
def test_a_signal_handler_may_close_the_database_while_its_own_thread_looks_through_what_is_staged(tmp_path, look):
    db = kolk.connect(tmp_path / "data")
    db.create_table("t", SCHEMA)
    for app in "abc":
        db.transaction(app, 1).put([{"id": 1}], table="t")
    stagings = db._service.transactions.stagings

    class Signalled:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            db.close()
            return getattr(self._inner, name)

    stagings._open = {handle: Signalled(entry) for handle, entry in stagings._open.items()}

    getattr(stagings, look)()

    assert len(stagings._open) == 0


# --- failures on the way


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("as told")], ids=["interrupted", "failed"])
@pytest.mark.parametrize("part", [ScanSessions, Snapshots, Stagings, Backups, Leases, Taking, Tablets])
def test_whatever_fails_when_a_database_closes_nothing_stays_open(tmp_path, monkeypatch, part, error):
    close, left = part.close, [error]

    def failing(self, *args):
        close(self, *args)
        if left:
            raise left.pop()

    with monkeypatch.context() as patched:
        patched.setattr(part, "close", failing)
        engine = Engine(Folder(tmp_path / "data"), CONFIG)
        db = Database(engine, engine.close, Rng())
        db.create_table("t", SCHEMA).put({"id": 1})

        with pytest.raises(type(error)):
            db.close()

    db.close()
    with kolk.connect(tmp_path / "data") as db:
        assert db.table("t").scan().to_arrow().num_rows == 1


def test_who_is_interrupted_as_he_waits_for_a_close_may_close_again_and_leaves_no_thread_behind(tmp_path, monkeypatch):
    before, close = set(threading.enumerate()), Snapshots.close
    db = kolk.connect(tmp_path / "data")
    db.create_table("t", SCHEMA).put({"id": 1})
    threads = set(threading.enumerate()) - before

    def interrupted(self, reason):
        monkeypatch.setattr(Snapshots, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(Snapshots, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        db.close()
    db.close()

    assert len(threads) == 3
    assert not any(thread.is_alive() for thread in threads)
    with kolk.connect(tmp_path / "data") as db:
        assert db.table("t").scan().to_arrow().num_rows == 1
