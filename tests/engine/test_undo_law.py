"""The law of undo: what is left is what there would be if what was taken back had never been written.

Random histories of several owners, each with columns of its own, of plain writers on the columns between, of rows whose
time is up and of restarts, against a model that folds, for each column of each key, what still stands of its history.
Rows without any value are the same as none: under a lock of some columns nobody can tell them apart. In every history
the changelog makes the table.
"""

import os
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.spec.owned import TTL, Rack

import kolk
from kolk.errors import ColumnLockConflict, Fenced, LockExpired, OwnerRolledBack
from kolk.testing.soundness import check_sound

FULL = os.environ.get("KOLK_FULL") == "1"
EXAMPLES = 500 if FULL else 25
STEPS = 40 if FULL else 25
KEYS = st.integers(0, 3)
VALUES = st.one_of(st.none(), st.integers(0, 9))
COLUMNS = ("s", "m", "c", "n", "l", "free", "at")
OWNERS = {"a": ("s", "n"), "b": ("m",), "c": ("l", "c"), "rival": ("n", "m")}
SUMS = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("s", "bigint", agg="sum"),
        kolk.Column("m", "bigint", agg="max"),
        kolk.Column("c", "bigint", agg="count"),
        kolk.Column("n", "string", agg="listagg"),
        kolk.Column("l", "bigint", agg="last_value"),
        kolk.Column("free", "bigint", agg="last_value"),
        kolk.Column("at", "timestamp(3)", agg="last_value"),
    ],
    "k",
)
PLAIN = kolk.Schema([kolk.Column(column.name, column.type) for column in SUMS.columns], "k")
OPTIONS = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at", "table.delete.behavior": "allow"}


def folded(column, old, new, *, is_summed):
    """What a put makes of a value."""
    if not is_summed or column in ("l", "free", "at"):
        return new
    if new is None:
        return 0 if column == "c" and old is None else old
    if column == "c":
        return (old or 0) + 1
    if old is None:
        return new
    return {"s": lambda: old + new, "m": lambda: max(old, new), "n": lambda: f"{old},{new}"}[column]()


STEP = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from(sorted(OWNERS)),
        st.dictionaries(KEYS, VALUES, min_size=1, max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("delete"), st.sampled_from(sorted(OWNERS)), st.sets(KEYS, min_size=1, max_size=2)),
    st.tuples(st.just("commit"), st.sampled_from(sorted(OWNERS))),
    st.tuples(st.just("begin"), st.sampled_from(sorted(OWNERS))),
    st.tuples(st.just("rest"), st.sampled_from(sorted(OWNERS))),
    st.tuples(st.just("plain put"), st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), st.sampled_from([0, 1, 9])),
    st.tuples(st.just("plain delete"), st.sets(KEYS, min_size=1, max_size=2)),
    st.tuples(st.just("plain put of a column"), st.sampled_from(["s", "m", "l"]), KEYS, VALUES),
    st.tuples(st.just("time passes"), st.sampled_from([TTL / 3, TTL + 1, 3_700.0])),
    st.tuples(st.just("reopen")),
)


class History:
    """What stands of what was written: for each change, whose it is, of which epoch, and what it did."""

    def __init__(self, is_summed):
        self.is_summed = is_summed
        self.changes = []

    def note(self, owner, epoch, what):
        self.changes.append((owner, epoch, what))

    def commit(self, owner, epoch):
        self.changes = [
            (None if who == owner and when <= epoch else who, when, what) for who, when, what in self.changes
        ]

    def undo(self, owner):
        self.changes = [change for change in self.changes if change[0] != owner]

    def rows(self):
        found = {}
        for _, _, (kind, columns, keys) in self.changes:
            for key, value in keys.items():
                row = found.setdefault(key, dict.fromkeys(COLUMNS))
                for column in columns:
                    given = value[column] if kind == "put" else None
                    summed = self.is_summed and kind == "put"
                    row[column] = folded(column, row[column], given, is_summed=summed)
        return _told(found)


class Play:
    """A history played on a table, step by step."""

    def __init__(self, rack, name, schema, is_summed):
        self.t = rack.create(name, schema, buckets=2, options=OPTIONS)
        self.rack = rack
        self.history = History(is_summed)
        self.grips, self.old, self.dirty, self.epochs = {}, [], set(), {}
        self.expires = {}

    def step(self, kind, *what):
        getattr(self, "_" + kind.replace(" ", "_"))(*what)

    def check(self):
        rows = self.t.rows()
        assert _told(rows) == self.history.rows()
        assert self.t.replayed() == rows
        check_sound(self.rack.folder)

    def finish(self):
        """Everybody begins once more, after everybody's time is up: nothing but what was committed is left."""
        self.rack.clock.advance(seconds=TTL + 1)
        for owner in sorted(OWNERS):
            self._begin(owner)
            self.rack.clock.advance(seconds=TTL + 1)
        self.check()
        assert all(who is None for who, _, _ in self.history.changes)

    # --- steps

    def _begin(self, owner):
        live = [other for other in self._rivals(owner) if self._is_live(other)]
        if live:
            with pytest.raises(ColumnLockConflict):
                self.t.begin(owner, OWNERS[owner])
            return
        for other in self._rivals(owner):
            self.history.undo(other)
            self.dirty.discard(other)
            self.expires.pop(other, None)
            if other in self.grips:
                self.old.append(self.grips.pop(other))
        if owner in self.grips:
            self.old.append(self.grips[owner])
        grip = self.t.begin(owner, OWNERS[owner])
        self.history.undo(owner)
        self.dirty.discard(owner)
        self.grips[owner] = grip
        self.expires[owner] = self.rack.clock.monotonic() + TTL
        self.epochs[owner] = grip.record.committed + 1

    def _put(self, owner, values, is_next):
        if owner not in self.grips:
            return
        rows = {
            key: {column: str(value) if column == "n" and value is not None else value for column in OWNERS[owner]}
            for key, value in values.items()
        }
        if is_next and owner in self.dirty:
            self.epochs[owner] += 1
        epoch = self.epochs[owner]
        if self._refused(owner, lambda: self.grips[owner].put(rows, epoch)):
            return
        self.dirty.add(owner)
        self.history.note(owner, epoch, ("put", OWNERS[owner], rows))

    def _delete(self, owner, keys):
        if owner not in self.grips:
            return
        epoch = self.epochs[owner]
        if not self._refused(owner, lambda: self.grips[owner].delete(sorted(keys), epoch)):
            self.dirty.add(owner)
            self.history.note(owner, epoch, ("delete", OWNERS[owner], dict.fromkeys(keys)))

    def _commit(self, owner):
        if owner not in self.grips:
            return
        epoch = self.epochs[owner]
        try:
            self.grips[owner].commit(epoch)
        except Fenced:
            # It had nothing to commit, its time was up, and somebody wrote its columns.
            assert owner not in self.dirty
            assert not self._is_live(owner)
            return
        self.history.commit(owner, epoch)
        self.dirty.discard(owner)
        self.epochs[owner] += 1

    def _rest(self, owner):
        if owner in self.grips:
            grip = self.grips.pop(owner)
            grip.rest()
            self.old.append(grip)
            self.history.undo(owner)
            self.dirty.discard(owner)
            self.expires.pop(owner, None)

    def _plain_put(self, values, hours):
        now = datetime.fromtimestamp(self.rack.clock.now_ms() / 1_000, UTC).replace(tzinfo=None)
        rows = {key: {"free": value, "at": now + timedelta(hours=hours)} for key, value in values.items()}
        self.t.put([{"k": key, **row} for key, row in rows.items()], columns=["free", "at"])
        self.history.note(None, 0, ("put", ("free", "at"), rows))

    def _plain_delete(self, keys):
        self.t.table.delete(sorted(keys), columns=["free", "at"])
        self.history.note(None, 0, ("delete", ("free", "at"), dict.fromkeys(keys)))

    def _plain_put_of_a_column(self, column, key, value):
        """Somebody who owns nothing: let in if nobody has the column, or if who has it is gone and left no dirt."""
        holders = [owner for owner, columns in OWNERS.items() if column in columns and owner in self.expires]
        is_free = not any(self._is_live(owner) or owner in self.dirty for owner in holders)
        if not is_free:
            with pytest.raises(ColumnLockConflict):
                self.t.put([{"k": key, column: value}], columns=[column])
            return
        self.t.put([{"k": key, column: value}], columns=[column])
        self.history.note(None, 0, ("put", (column,), {key: {column: value}}))

    def _time_passes(self, seconds):
        self.rack.clock.advance(seconds=seconds)
        before = set(self.t.rows())
        self.rack.engine.tick()
        gone = before - set(self.t.rows())
        self.history.note(None, 0, ("delete", COLUMNS, dict.fromkeys(gone)))

    def _reopen(self):
        self.rack.reopen()
        now = self.rack.clock.monotonic()
        self.expires = dict.fromkeys(self.expires, now + TTL)  # one more time for everybody

    # --- what to expect

    def _rivals(self, owner):
        return [other for other in self.expires if other != owner and set(OWNERS[other]) & set(OWNERS[owner])]

    def _is_live(self, owner):
        return owner in self.expires and self.rack.clock.monotonic() < self.expires[owner]

    def _refused(self, owner, call):
        """Whether a put is turned away, as it must be if its time is up; those of all who were before always are."""
        for grip in self.old:
            with pytest.raises((Fenced, OwnerRolledBack)):
                grip.put({0: dict.fromkeys(OWNERS[grip.record.name])}, 99)
        if self._is_live(owner):
            call()
            return False
        with pytest.raises((LockExpired, Fenced)):
            call()
        return True


def _told(rows):
    """Rows with a value, without what is null."""
    shown = {key: {name: value for name, value in row.items() if value is not None} for key, row in rows.items()}
    return {key: row for key, row in shown.items() if row}


@pytest.fixture(scope="module")
def rack():
    with tempfile.TemporaryDirectory() as folder:
        rack = Rack(Path(folder) / "data")
        rack.numbers = count(1)
        yield rack
        rack.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["default", "aggregation"])
def test_what_is_undone_was_never_written(rack, engine):
    @settings(max_examples=EXAMPLES)
    @example([("put", "a", {1: 1}, False), ("commit", "a"), ("plain put", {1: 1}, 0), ("put", "a", {1: 5}, False),
              ("time passes", 3_700.0), ("begin", "a")])  # fmt: skip
    @given(st.lists(STEP, min_size=5, max_size=STEPS))
    def play(steps):
        name, is_summed = f"t{next(rack.numbers)}", engine == "aggregation"
        game = Play(rack, name, SUMS if is_summed else PLAIN, is_summed)
        try:
            for owner in ("a", "b", "c"):
                game.step("begin", owner)
            for step in steps:
                game.step(*step)
                game.check()
            game.finish()
        finally:
            rack.db.drop_table(name)

    play()
