"""A history of owners and others, played on a table step by step, beside a model that folds what still stands of it.

The model knows columns by letters that stay, whatever they are called in the table by now. For each change it has whose
it is and of which epoch; a commit makes changes nobody's, an undo removes them.
"""

import shutil
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from tests.spec.owned import TTL, Rack

import kolk
from kolk.errors import ColumnLockConflict, Fenced, LockExpired, OwnerRolledBack

OWNERS = {"a": ("s", "n"), "b": ("m",), "c": ("l", "c"), "d": ("x",), "rival": ("n", "m", "x")}
REPLAYED = "d"
"""The owner without undo, on a table that aggregates."""
COLUMNS = ("s", "m", "c", "n", "l", "x", "free", "at")
TYPES = dict.fromkeys(COLUMNS, "bigint") | {"n": "string", "m": "int", "at": "timestamp(3)"}
SUMS = {"s": "sum", "m": "max", "c": "count", "n": "listagg", "l": "last_value", "x": "max"}
OPTIONS = {"table.kv.ttl": "1h", "table.kv.ttl.column": "at", "table.delete.behavior": "allow"}


def schema_of(is_summed):
    columns = [
        kolk.Column(name, TYPES[name], agg=SUMS.get(name, "last_value") if is_summed else None) for name in COLUMNS
    ]
    return kolk.Schema([kolk.Column("k", "int"), *columns], "k")


def folded(column, old, new):
    """What a put makes of a value, on a table that aggregates."""
    function = SUMS.get(column, "last_value")
    if function == "last_value":
        return new
    if function == "count":
        return (old or 0) + (new is not None)
    if old is None or new is None:
        return old if new is None else new
    return {"sum": lambda: old + new, "max": lambda: max(old, new), "listagg": lambda: f"{old},{new}"}[function]()


class CrashingRack(Rack):
    """A ``Rack`` that can go on with a copy of its folder, as a process finds it that was killed."""

    def __init__(self, folder, **settings):
        self._copies = count(1)
        super().__init__(folder, **settings)

    def crash(self):
        before, self._folder = self._folder, self._folder.with_name(f"copy-{next(self._copies)}")
        shutil.copytree(before, self._folder, ignore=shutil.ignore_patterns("LOCK", "lock"))
        self.engine.close()
        shutil.rmtree(before)
        self._open()


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

    def rows(self, dropped=()):
        found = {}
        for _, _, (kind, columns, keys) in self.changes:
            for key, values in keys.items():
                row = found.setdefault(key, dict.fromkeys(COLUMNS))
                for column in columns:
                    if kind == "delete":
                        row[column] = None
                    else:
                        given = values[column]
                        row[column] = folded(column, row[column], given) if self.is_summed else given
        return told({key: {name: row[name] for name in row if name not in dropped} for key, row in found.items()})


class Play:
    """A history played on a table. Rows without any value are the same as none."""

    def __init__(self, rack, name, is_summed):
        self.t = rack.create(name, schema_of(is_summed), buckets=3, options=OPTIONS)
        self.rack = rack
        self.name = name
        self.history = History(is_summed)
        self.names = {column: column for column in COLUMNS}
        self.grips, self.old, self.dirty, self.epochs = {}, [], set(), {}
        self.expires, self.set_back = {}, set()
        self.versions, self.numbers = count(1), count(1)

    def step(self, kind, *what):
        getattr(self, "_" + kind.replace(" ", "_"))(*what)

    def check(self):
        rows = self.t.rows()
        shown = {name: column for column, name in self.names.items()}
        found = {key: {shown[name]: row[name] for name in row if name in shown} for key, row in rows.items()}
        assert told(found) == self.history.rows(set(COLUMNS) - set(self.names))
        assert self.t.replayed() == rows

    def finish(self):
        """Everybody begins once more, after everybody's time is up: nothing but what was committed is left."""
        self.rack.clock.advance(seconds=TTL + 1)
        for owner in sorted(OWNERS):
            self._begin(owner)
            self.rack.clock.advance(seconds=TTL + 1)
        self.check()
        assert all(who is None for who, _, _ in self.history.changes)

    # --- an owner

    def _begin(self, owner, resumes=False):
        if not self._columns(owner):
            return
        claim = {"undo": "none" if self._is_replayed(owner) else "always"}
        if resumes and owner in self.epochs:
            claim["resume_epoch"] = self.epochs[owner]
        refused = self._beginning_refused(owner, claim)
        if refused is not None:
            with pytest.raises(refused):
                self.t.begin(owner, self._named(owner), **claim)
            return
        for other in self._rivals(owner):
            self._let_go(other)
        if owner in self.grips:
            self.old.append(self.grips[owner])
        grip = self.t.begin(owner, self._named(owner), **claim)
        self.history.commit(owner, claim.get("resume_epoch", -1))
        self.history.undo(owner)
        self.dirty.discard(owner)
        self.set_back.discard(owner)
        self.grips[owner] = grip
        self.expires[owner] = self.rack.clock.monotonic() + TTL
        self.epochs[owner] = grip.record.committed + 1

    def _beginning_refused(self, owner, claim):
        if owner in self.set_back and claim.get("resume_epoch", -1) >= self.epochs[owner]:
            return OwnerRolledBack
        return ColumnLockConflict if any(self._is_live(other) for other in self._rivals(owner)) else None

    def _put(self, owner, values, is_next):
        columns = self._columns(owner)
        if owner not in self.grips or not columns:
            return
        rows = {
            key: {column: str(value) if column == "n" and value is not None else value for column in columns}
            for key, value in values.items()
        }
        if is_next and owner in self.dirty:
            self.epochs[owner] += 1
        named_rows = self._in_table(rows)
        self._written(owner, "put", rows, lambda grip, named, epoch: grip.put(named_rows, epoch, columns=named))

    def _delete(self, owner, keys):
        if owner not in self.grips or not self._columns(owner) or self._is_replayed(owner):
            return
        keys = dict.fromkeys(sorted(keys))
        self._written(owner, "delete", keys, lambda grip, named, epoch: grip.delete(keys, epoch, columns=named))

    def _written(self, owner, kind, keys, call):
        columns, epoch, grip = self._columns(owner), self.epochs[owner], self.grips[owner]
        if not self._refused(owner, lambda: call(grip, self._named(owner), epoch)):
            is_replayed = self._is_replayed(owner)
            self.dirty |= set() if is_replayed else {owner}
            self.history.note(None if is_replayed else owner, epoch, (kind, columns, keys))

    def _commit(self, owner):
        if owner not in self.grips:
            return
        epoch = self.epochs[owner]
        try:
            self.grips[owner].commit(epoch)
        except Fenced:
            # It had nothing to take back, its time was up, and somebody wrote its columns.
            assert owner not in self.dirty
            assert not self._is_live(owner)
            return
        self.history.commit(owner, epoch)
        self.dirty.discard(owner)
        self.epochs[owner] += 1

    def _rest(self, owner):
        if owner in self.grips:
            self.grips[owner].rest()
            self._let_go(owner)

    # --- what becomes of an owner

    def _evict(self, owner):
        record = self.rack.engine.owners._records.get((self.t.table.info.id, owner))
        if record is not None and owner in self.expires:
            assert self.rack.engine.owners.evict(self.t.table.info, record) == (owner in self.dirty)
            self._let_go(owner)

    def _release(self, owner, keeps):
        was_known = owner in self.epochs
        assert self.rack.db.release_lock(self.name, owner, keep=keeps) == was_known
        if keeps:
            self.history.commit(owner, 2**62)
        self._let_go(owner)
        self.set_back.discard(owner)
        self.epochs.pop(owner, None)

    def _let_go(self, owner):
        self.history.undo(owner)
        if owner in self.dirty:
            self.set_back.add(owner)
            self.dirty.discard(owner)
        self.expires.pop(owner, None)
        if owner in self.grips:
            self.old.append(self.grips.pop(owner))

    # --- others

    def _plain_put(self, values, hours):
        now = datetime.fromtimestamp(self.rack.clock.now_ms() / 1_000, UTC).replace(tzinfo=None)
        rows = {key: {"free": value, "at": now + timedelta(hours=hours)} for key, value in values.items()}
        self.t.put(self._listed(rows), columns=self._named_as(("free", "at")))
        self.history.note(None, 0, ("put", ("free", "at"), rows))

    def _plain_delete(self, keys):
        self.t.table.delete(sorted(keys), columns=self._named_as(("free", "at")))
        self.history.note(None, 0, ("delete", ("free", "at"), dict.fromkeys(keys)))

    def _plain_put_of_a_column(self, column, values):
        rows = {key: {column: value} for key, value in values.items()}
        with self._let_in_if_free(column, rows):
            self.t.put(self._listed(rows), columns=self._named_as((column,)))

    def _transaction(self, column, values):
        rows = {key: {column: value} for key, value in values.items()}
        with self._let_in_if_free(column, rows), self.t.table.transaction(self.name, next(self.versions)) as tx:
            tx.put(self._listed(rows), columns=self._named_as((column,)))

    @contextmanager
    def _let_in_if_free(self, column, rows):
        """Somebody who owns nothing: let in if nobody has the column, or if who has it is gone and left no dirt."""
        if column not in self.names:
            with pytest.raises(KeyError):
                yield
            return
        holders = [owner for owner, columns in OWNERS.items() if column in columns and owner in self.expires]
        if any(self._is_live(owner) or owner in self.dirty for owner in holders):
            with pytest.raises(ColumnLockConflict):
                yield
            return
        yield
        self.history.note(None, 0, ("put", (column,), rows))

    # --- the table, the clock and the process

    def _rename(self, column):
        if column in self.names:
            name = f"{column}{next(self.numbers)}"
            self.t.table.rename_column(self.names[column], name)
            self.names[column] = name

    def _widen(self):
        if "m" in self.names and str(self.t.table.schema.column(self.names["m"]).type) == "int":
            self.t.table.widen_column(self.names["m"], "bigint")

    def _add(self):
        agg = "last_value" if self.history.is_summed else None
        self.t.table.add_column(f"new{next(self.numbers)}", "int", agg=agg)

    def _drop(self, column):
        if column in self.names:
            self.t.table.drop_column(self.names.pop(column))

    def _time_passes(self, seconds):
        self.rack.clock.advance(seconds=seconds)
        before = set(self.t.rows())
        self.rack.engine.tick()
        gone = before - set(self.t.rows())
        self.history.note(None, 0, ("delete", COLUMNS, dict.fromkeys(gone)))

    def _reopen(self):
        self.rack.reopen()
        self._give_grace()

    def _crash(self):
        self.rack.crash()
        self._give_grace()

    def _close_buckets(self):
        tablets = self.rack.engine._tablets
        for bucket in [bucket for bucket in tablets._entries if bucket.table == self.t.table.info.id]:
            tablets._rest(bucket)

    def _give_grace(self):
        self.expires = dict.fromkeys(self.expires, self.rack.clock.monotonic() + TTL)  # one more time for everybody

    # --- what to expect

    def _is_replayed(self, owner):
        return owner == REPLAYED and self.history.is_summed

    def _columns(self, owner):
        return tuple(column for column in OWNERS[owner] if column in self.names)

    def _named(self, owner):
        return self._named_as(self._columns(owner))

    def _named_as(self, columns):
        return tuple(self.names[column] for column in columns)

    def _in_table(self, rows):
        return {key: {self.names[column]: row[column] for column in row} for key, row in rows.items()}

    def _listed(self, rows):
        return [{"k": key, **row} for key, row in self._in_table(rows).items()]

    def _rivals(self, owner):
        return [
            other for other in self.expires if other != owner and set(self._columns(other)) & set(self._columns(owner))
        ]

    def _is_live(self, owner):
        return owner in self.expires and self.rack.clock.monotonic() < self.expires[owner]

    def _refused(self, owner, call):
        """Whether a put is turned away, as it must be if its time is up; those of all who were before always are."""
        for grip in self.old[-5:]:
            with pytest.raises((Fenced, OwnerRolledBack)):
                grip.put({0: {}}, 99, columns=())
        if self._is_live(owner):
            call()
            return False
        with pytest.raises((LockExpired, Fenced)):
            call()
        return True


def told(rows):
    """Rows with a value, without what is null."""
    shown = {key: {name: value for name, value in row.items() if value is not None} for key, row in rows.items()}
    return {key: row for key, row in shown.items() if row}
