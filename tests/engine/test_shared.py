"""Connections of one process to one folder, which share an engine: the last one that is closed closes it."""

import gc
import inspect
import sys
from contextlib import contextmanager

import pytest

import kolk
from kolk.engine.shared import ENGINES, SharedEngines
from kolk.engine.tablets import Tablets

SCHEMA = kolk.Schema([kolk.Column("id", "int")], "id")


@pytest.fixture
def folder(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        db.create_table("t", SCHEMA).put({"id": 1})
    return tmp_path / "data"


@contextmanager
def handler_at(function, text, handler):
    """Run something once before a line, in its own thread, as a signal handler is."""
    lines, first = inspect.getsourcelines(function)
    line = first + next(place for place, each in enumerate(lines) if text in each)
    done = []

    def trace(frame, event, arg):
        if frame.f_code is function.__code__ and event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            done.append(line)
            handler()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
    assert done


def rows(db):
    return db.table("t").scan().to_arrow().num_rows


def is_open(folder):
    return folder.resolve() in ENGINES._open


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("as told")], ids=["interrupted", "failed"])
def test_a_forgotten_connection_that_does_not_close_well_takes_no_other_along(folder, monkeypatch, tmp_path, error):
    """Who is interrupted by it may close again, and that is still one user fewer and not two."""
    close, broken = Tablets.close, []

    def failing(self):
        close(self)
        if self in broken:
            broken.remove(self)
            raise error

    monkeypatch.setattr(Tablets, "close", failing)
    one, other = kolk.connect(folder), kolk.connect(folder)
    forgotten = kolk.connect(tmp_path / "forgotten")
    broken.append(forgotten._service._tablets)
    del forgotten
    gc.collect()

    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            one.close()
    one.close()
    one.close()

    assert not broken
    assert rows(other) == 1
    other.close()
    assert not is_open(folder)


def test_a_handler_that_closes_a_connection_while_another_is_closed_leaves_none_open(folder):
    one, other = kolk.connect(folder), kolk.connect(folder)
    with handler_at(SharedEngines._release, "known.users.pop()", other.close):
        one.close()
    assert not is_open(folder)

    one, other = kolk.connect(folder), kolk.connect(folder)
    with handler_at(SharedEngines._release, "if known.users:", other.close):
        one.close()
    assert not is_open(folder)

    with kolk.connect(folder) as db:
        assert rows(db) == 1


def test_a_handler_that_closes_the_only_connection_while_another_is_opened_leaves_that_one_open(folder):
    one = kolk.connect(folder)

    with handler_at(SharedEngines.attach, "known.users.append(None)", one.close):
        other = kolk.connect(folder)

    assert rows(other) == 1
    other.close()
    assert not is_open(folder)
