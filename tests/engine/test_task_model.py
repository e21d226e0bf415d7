"""Tasks of an owner against a model: attempts, copies, seals, runs, commits, kills and takeovers in any order.

One task writes to one bucket, the other to two. The model has, of each bucket, whose rows it holds and whether that
attempt is through, and of each task the attempt that the server knows as its current one, which a restart forgets.
"""

import os
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.undo_play import CrashingRack
from tests.spec.owned import TTL

from kolk.errors import ColumnLockConflict, CommitMismatch, EpochClosed, Fenced, LockExpired, OwnerRolledBack
from kolk.testing.soundness import check_sound

FULL = os.environ.get("KOLK_FULL") == "1"
EXAMPLES = 500 if FULL else 40
STEPS = 50 if FULL else 30
BUCKETS = {0: (0,), 1: (1, 2)}
"""The buckets of each task."""
TASK = st.sampled_from(sorted(BUCKETS))
STEP = st.one_of(
    st.tuples(st.just("put"), TASK, st.integers(0, 1), st.integers(0, 1), st.integers(1, 9)),
    st.tuples(st.just("put"), TASK, st.integers(0, 1), st.integers(0, 1), st.integers(1, 9)),
    st.tuples(st.just("put of an earlier attempt"), TASK, st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("retry"), TASK),
    st.tuples(st.just("attempt"), TASK),
    st.tuples(st.just("seal"), TASK),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit of what was left")),
    st.tuples(st.just("wrong commit"), TASK),
    st.tuples(st.just("run")),
    st.tuples(st.just("join")),
    st.tuples(st.just("earlier run")),
    st.tuples(st.just("replay")),
    st.tuples(st.just("rival")),
    st.tuples(st.just("others")),
    st.tuples(st.just("time passes"), st.sampled_from([TTL / 3, TTL + 1])),
    st.tuples(st.just("renew")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("close buckets")),
)


class Held:
    """What a bucket holds of the epoch: whose rows, and whether that attempt is through."""

    def __init__(self):
        self.ticket, self.seq, self.is_sealed, self.rows = 0, 0, False, {}


class Play:
    """Steps on a table, and what they make of the model."""

    def __init__(self, rack, name):
        self.rack = rack
        self.t = rack.create(name, buckets=3)
        firsts = self.t.a_key_of_each_bucket()
        self.keys = {bucket: (firsts[bucket], self._another_key(bucket, firsts[bucket])) for bucket in range(3)}
        self.committed, self.epoch, self.runs = {}, 0, []
        self.titles, self.counts = {}, count(1)
        self._run()

    def step(self, kind, *what):
        getattr(self, "_" + kind.replace(" ", "_"))(*what)

    def check(self):
        rows = self.t.rows()
        sums = {key: row["pv"] for key, row in rows.items() if "pv" in row}
        expected = dict(self.committed)
        for held in self.held.values():
            for key, value in held.rows.items():
                expected[key] = expected.get(key, 0) + value
        assert sums == expected
        assert self.t.replayed() == rows
        check_sound(self.rack.folder)

    # --- runs

    def _run(self):
        self.runs.append(f"run-{len(self.runs)}")
        self.grip = self.t.begin(attempt=self.runs[-1])
        self._forget_attempts()
        self.expires = self.rack.clock.monotonic() + TTL
        self.is_displaced = self.has_lapsed = False

    @property
    def is_out(self):
        """Whether the run has no columns any more: another owner has them, or nobody."""
        return self.is_displaced or self.has_lapsed

    def _forget_attempts(self):
        self.held = {bucket: Held() for bucket in range(3)}
        self.attempts = {task: [] for task in BUCKETS}
        self.current, self.through, self.seqs, self.last = {}, {}, {}, {}

    def _join(self):
        """One more task of this run comes."""
        if self.is_out:
            with pytest.raises(Fenced):
                self.t.begin(attempt=self.runs[-1])
        elif not self._is_live():
            with pytest.raises(LockExpired):
                self.t.begin(attempt=self.runs[-1])
        else:
            assert self.t.begin(attempt=self.runs[-1]).record.fence == self.grip.record.fence
            self._renewed()

    def _earlier_run(self):
        for token in self.runs[-5:-1]:
            with pytest.raises(Fenced):
                self.t.begin(attempt=token)

    def _replay(self):
        """The engine did not hear of the last commit: the batch is run again, whole, and nothing comes of it."""
        if not self.epoch:
            return
        self._run()
        named = {}
        for task, buckets in BUCKETS.items():
            attempt = self.grip.begin_task(self.epoch - 1, task)
            rows = {key: {"pv": 1} for bucket in buckets for key in self.keys[bucket]}
            self.grip.put(rows, self.epoch - 1, seq=1, ticket=attempt.ticket)
            seqs = {str(bucket): 1 for bucket in buckets}
            self.grip.seal(task, attempt.ticket, seqs)
            named |= {bucket: (attempt.ticket, 1) for bucket in seqs}
        self.grip.commit_tasks(self.epoch - 1, named)

    # --- attempts

    def _attempt(self, task):
        if self.is_out:
            with pytest.raises((Fenced, OwnerRolledBack)):
                self.grip.begin_task(self.epoch, task)
            return
        made = self.grip.begin_task(self.epoch, task)
        if task in self.through:
            assert (made.ticket, made.message) == self.through[task]
            return
        assert made.message is None
        assert all(made.ticket > ticket for tickets in self.attempts.values() for ticket in tickets)
        self.attempts[task].append(made.ticket)
        self.current[task] = made.ticket

    def _put(self, task, which, key, value):
        if self.attempts[task]:
            bucket = BUCKETS[task][which % len(BUCKETS[task])]
            self._written(task, bucket, self.attempts[task][-1], self.keys[bucket][key], value)

    def _put_of_an_earlier_attempt(self, task, back, which):
        if self.attempts[task]:
            bucket = BUCKETS[task][which % len(BUCKETS[task])]
            ticket = self.attempts[task][-1 - back % len(self.attempts[task])]
            self._written(task, bucket, ticket, self.keys[bucket][0], 100)

    def _written(self, task, bucket, ticket, key, value):
        seq, held = self.seqs.get(ticket, 0) + 1, self.held[bucket]
        refused = self._refused(task, held, ticket)
        if refused is not None:
            with pytest.raises(refused):
                self.grip.put({key: {"pv": value}}, self.epoch, seq=seq, ticket=ticket)
            return
        self.grip.put({key: {"pv": value}}, self.epoch, seq=seq, ticket=ticket)
        if held.ticket != ticket:
            held = self.held[bucket] = Held()
        held.ticket, held.seq = ticket, seq
        held.rows[key] = held.rows.get(key, 0) + value
        self.seqs[ticket] = seq
        self.last[task] = (bucket, ticket, seq, key, value)

    def _refused(self, task, held, ticket):
        if self.is_out:
            return (Fenced, OwnerRolledBack)
        if not self._is_live():
            return LockExpired
        if self.current.get(task, ticket) != ticket or ticket < held.ticket:
            return Fenced
        return EpochClosed if held.is_sealed else None

    def _retry(self, task):
        """The answer to its last put was lost."""
        if task not in self.last:
            return
        bucket, ticket, seq, key, value = self.last[task]
        if self.is_out or not self._is_live() or self.current.get(task, ticket) != ticket:
            return
        if self.held[bucket].ticket == ticket:
            self.grip.put({key: {"pv": value}}, self.epoch, seq=seq, ticket=ticket)

    def _seal(self, task):
        if not self.attempts[task]:
            return
        ticket = self.attempts[task][-1]
        mine = [bucket for bucket in BUCKETS[task] if self.held[bucket].ticket == ticket]
        seqs = {str(bucket): self.held[bucket].seq for bucket in mine}
        message = b"%d" % next(self.counts)
        refused = None
        if self.is_out or self.current.get(task) != ticket:
            refused = (Fenced, OwnerRolledBack)
        elif not self._is_live() and task not in self.through and mine:
            refused = LockExpired
        if refused is not None:
            with pytest.raises(refused):
                self.grip.seal(task, ticket, seqs, message)
            return
        self.grip.seal(task, ticket, seqs, message)
        self.through.setdefault(task, (ticket, message))
        for bucket in mine:
            self.held[bucket].is_sealed = True

    # --- commits

    def _commit(self):
        named = {str(bucket): (held.ticket, held.seq) for bucket, held in self.held.items() if held.is_sealed}
        if self.is_out:
            with pytest.raises((Fenced, OwnerRolledBack)):
                self.grip.commit_tasks(self.epoch, named)
            return
        for _ in range(2):
            self.grip.commit_tasks(self.epoch, named)
        for held in self.held.values():
            for key, value in held.rows.items() if held.is_sealed else ():
                self.committed[key] = self.committed.get(key, 0) + value
        self.epoch += 1
        self._forget_attempts()

    def _commit_of_what_was_left(self):
        """Nobody has sealed anything, and the engine says whose rows are whole: those of the newest attempts that have
        written. What others have left beside them goes."""
        if self.is_out:
            return
        tickets = {self.held[bucket].ticket for buckets in BUCKETS.values() for bucket in buckets}
        newest = {task: max((t for t in self.attempts[task] if t in tickets), default=0) for task in BUCKETS}
        whole = {
            bucket: self.held[bucket]
            for task, buckets in BUCKETS.items()
            for bucket in buckets
            if newest[task] and self.held[bucket].ticket == newest[task]
        }
        named = {str(bucket): (held.ticket, held.seq) for bucket, held in whole.items()}
        for bucket, (ticket, seq) in named.items():
            for wrong in ((ticket, seq + 1), (ticket + 1, seq)):
                with pytest.raises(CommitMismatch):
                    self.grip.commit_tasks(self.epoch, {**named, bucket: wrong}, unsealed=True)
        self.grip.commit_tasks(self.epoch, named, unsealed=True)
        for held in whole.values():
            for key, value in held.rows.items():
                self.committed[key] = self.committed.get(key, 0) + value
        self.epoch += 1
        self._forget_attempts()

    def _wrong_commit(self, task):
        """A task that is not through, or another count than has arrived."""
        if self.is_out:
            return
        for bucket in BUCKETS[task]:
            held = self.held[bucket]
            if held.ticket:
                wrong = (held.ticket, held.seq + held.is_sealed)
                with pytest.raises(CommitMismatch):
                    self.grip.commit_tasks(self.epoch, {str(bucket): wrong})
                with pytest.raises(CommitMismatch):
                    self.grip.commit(self.epoch, {str(bucket): held.seq})

    # --- others

    def _rival(self):
        if not self.is_out and self._is_live():
            with pytest.raises(ColumnLockConflict):
                self.t.begin("rival")
            return
        rival = self.t.begin("rival")
        key = self.keys[0][0]
        rival.put({key: {"pv": 1}}, 0)
        rival.commit(0)
        rival.release()
        self.committed[key] = self.committed.get(key, 0) + 1
        self._forget_attempts()
        self.is_displaced = True

    def _others(self):
        """Whoever is no owner lets columns go whose time is up, if nothing uncommitted is in them."""
        self.t.put([{"k": key, "title": str(next(self.counts))} for key in range(4)], columns=["title"])
        if not self._is_live() and not any(held.ticket for held in self.held.values()):
            self.has_lapsed = True

    def _time_passes(self, seconds):
        self.rack.clock.advance(seconds=seconds)

    def _renew(self):
        if not self.is_out and self._is_live():
            self.grip.renew()
            self._renewed()

    def _reopen(self):
        self.rack.reopen()
        self._started()

    def _crash(self):
        self.rack.crash()
        self._started()

    def _started(self):
        """What the server had in memory only is gone: which attempts are current, what tasks have left, and whose
        columns were let go."""
        self.current, self.through = {}, {}
        self.has_lapsed = False
        self._renewed()

    def _close_buckets(self):
        tablets = self.rack.engine._tablets
        for bucket in [bucket for bucket in tablets._entries if bucket.table == self.t.table.info.id]:
            tablets._rest(bucket)

    def _renewed(self):
        self.expires = self.rack.clock.monotonic() + TTL

    def _is_live(self):
        return self.rack.clock.monotonic() < self.expires

    def _another_key(self, bucket, first):
        """One more key of a bucket: where a plain put of it goes."""
        for key in range(first + 1, 100):
            if list(self.t.put([{"k": key, "title": "x"}], columns=["title"]).offsets) == [str(bucket)]:
                return key
        raise AssertionError("there is none")


@pytest.fixture(scope="module")
def rack():
    with tempfile.TemporaryDirectory() as folder:
        rack = CrashingRack(Path(folder) / "data")
        rack.numbers = count(1)
        yield rack
        rack.close()


@pytest.mark.timeout(600)
def test_only_what_is_sealed_and_named_is_ever_committed(rack):
    @settings(max_examples=EXAMPLES)
    @example([("attempt", 1), ("put", 1, 0, 0, 1), ("put", 1, 1, 0, 1), ("attempt", 1), ("put", 1, 0, 0, 5),
              ("seal", 1), ("crash",), ("commit",)])  # fmt: skip
    @example([("attempt", 0), ("put", 0, 0, 0, 1), ("seal", 0), ("crash",), ("attempt", 0), ("put", 0, 0, 0, 1),
              ("commit",), ("replay",), ("commit",)])  # fmt: skip
    @example([("attempt", 0), ("attempt", 0), ("put of an earlier attempt", 0, 1, 0), ("attempt", 1), ("attempt", 1),
              ("put", 1, 0, 0, 1), ("put of an earlier attempt", 1, 1, 0), ("seal", 1)])  # fmt: skip
    @example([("time passes", TTL + 1), ("others",), ("join",), ("attempt", 0), ("crash",), ("attempt", 0),
              ("put", 0, 0, 0, 1), ("seal", 0), ("commit",)])  # fmt: skip
    @given(st.lists(STEP, min_size=5, max_size=STEPS))
    def play(steps):
        name = f"t{next(rack.numbers)}"
        game = Play(rack, name)
        try:
            for step in steps:
                game.step(*step)
                game.check()
        finally:
            rack.db.drop_table(name)

    play()
