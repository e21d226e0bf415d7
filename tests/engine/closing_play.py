"""A database that is closed in the middle of a call, by its own thread, as a signal handler does it.

Run as a program, because what goes wrong here is a thread that waits for itself: whoever starts it has a time limit. It
closes at one line of the call after the other, and after each of them looks what was told and what is left.
"""

import logging
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import kolk
from kolk.engine.database import Engine
from kolk.errors import KolkError
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("n", "bigint")], "id")
# Fewer than the table has, so that buckets are closed to open others.
CONFIG = kolk.EngineConfig(
    durability="process", kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22, buckets_open_max=2
)
IDS = range(20)


def rows(n):
    return [{"id": id, "n": n} for id in IDS]


def create_and_drop(db):
    db.create_table("other", SCHEMA, buckets=2)
    db.drop_table("other")


def commit(db):
    with db.transaction("app", 1) as transaction:
        transaction.put(rows(2), table="t")


def stage_and_list(db):
    """Several are open at once, and what there is of them is looked at."""
    with suppress(RuntimeError), db.transaction("app", 1) as one, db.transaction("other", 1) as other:
        for transaction in (one, other):
            transaction.put(rows(2), table="t")
        db.transactions()
        db._service.transactions.stagings.reap()
        raise RuntimeError("it is not to be")


def discard(db):
    with suppress(RuntimeError), db.transaction("app", 1) as transaction:
        transaction.put(rows(2), table="t")
        raise RuntimeError("it is not to be")


def lease(db):
    """Another one is there all the time, whose time is noted down when the database closes."""
    with db.lease(["t"]), db.lease(["t"]):
        pass


CALLS = {
    "backup": lambda db: db.backup(Path(db._service.path).with_name("backup")),
    "changelog": lambda db: list(db.table("t").changelog({"0": 0, "1": 0, "2": 0}, stop=db.table("t").scan().offsets)),
    "commit": commit,
    "create_and_drop": create_and_drop,
    "describe": lambda db: (db.table("t").describe(), db.status()),
    "discard": discard,
    "get": lambda db: db.table("t").get([{"id": id} for id in IDS]),
    "lease": lease,
    "put": lambda db: db.table("t").put(rows(1)),
    "scan": lambda db: db.table("t").scan().to_arrow(),
    "stage_and_list": stage_and_list,
    "take_snapshot": lambda db: db.table("t").take_snapshot(),
}


def opened(path):
    engine = Engine(Folder(path), CONFIG)
    return kolk.Database(engine, engine.close, Rng())


class Closer:
    """Closes a database before the line of Kolk that has this number, counted from the start of a call."""

    def __init__(self, db, line):
        self._close = db.close
        self._left = line
        self.where = None

    def __call__(self, frame, event, arg):
        """See ``sys.settrace``."""
        if "/kolk/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self._close()
        return self


def played(call, line, home):
    """Close at a line of a call; where that was, None if the call has fewer."""
    shutil.rmtree(home, ignore_errors=True)
    db = opened(home / "data")
    db.create_table("t", SCHEMA, buckets=3).put(rows(0))
    engine, closer = db._service, Closer(db, line)
    told = None
    sys.settrace(closer)
    try:
        call(db)
    except Exception as error:  # noqa: BLE001 - looked at below
        told = error
    sys.settrace(None)
    db.close()
    assert told is None or (closer.where and isinstance(told, KolkError)), f"closed at {closer.where}, told {told!r}"
    assert engine._tablets.opened() == [], closer.where
    assert not engine.transactions.stagings._open, closer.where
    with opened(home / "data") as db:
        found = db.table("t").scan().to_arrow()
        assert sorted(found["id"].to_pylist()) == list(IDS), closer.where
    return closer.where


def main(name, every, home):
    """Close at every so manyth line."""
    logging.disable(logging.CRITICAL)
    line = 1
    while played(CALLS[name], line, Path(home)) is not None:
        line += int(every)
    assert line > 1


if __name__ == "__main__":
    main(*sys.argv[1:])
