"""The gate: together or alone, and nobody waits for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kolk.engine.gate import Gate

SECONDS = 30
"""Much longer than anything here takes: whoever waits so long waits for ever."""


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def start():
    """Run something beside the test; it has ended, well, when the test ends."""
    with ThreadPoolExecutor(16) as threads:
        begun = []
        yield lambda step: begun.append(threads.submit(step)) or begun[-1]
        for each in begun:
            each.result(SECONDS)


class Passing:
    """Somebody who passes, stays until he is let go, and is seen inside."""

    def __init__(self, how):
        self.inside = threading.Event()
        self.leave = threading.Event()
        self._how = how

    def __call__(self):
        with self._how():
            self.inside.set()
            assert self.leave.wait(SECONDS)


def until(condition):
    """Wait for something that another thread does without telling."""
    look = threading.Event()
    for _ in range(SECONDS * 1_000):
        if condition():
            return
        look.wait(0.001)
    pytest.fail("it never came about")


def test_many_pass_together(gate, start):
    everybody = [Passing(gate.shared) for _ in range(8)]
    for each in everybody:
        start(each)

    for each in everybody:
        assert each.inside.wait(SECONDS)
    for each in everybody:
        each.leave.set()


def test_who_passes_alone_waits_for_those_inside_and_nobody_joins_him(gate, start):
    first, alone, later, another = (Passing(how) for how in (gate.shared, gate.exclusive, gate.shared, gate.exclusive))
    start(first)
    assert first.inside.wait(SECONDS)
    start(alone)
    until(lambda: gate._waiting_alone)
    assert not alone.inside.is_set()

    first.leave.set()
    assert alone.inside.wait(SECONDS)
    start(later)
    start(another)
    until(lambda: gate._waiting_alone)
    assert not later.inside.is_set()
    assert not another.inside.is_set()
    for each in (alone, later, another):
        each.leave.set()

    assert later.inside.wait(SECONDS)
    assert another.inside.wait(SECONDS)


def test_who_waits_to_pass_alone_keeps_newcomers_out(gate, start):
    """Else commits that follow on each other would keep a scan waiting for ever."""
    first, alone, newcomer = Passing(gate.shared), Passing(gate.exclusive), Passing(gate.shared)
    start(first)
    assert first.inside.wait(SECONDS)
    start(alone)
    until(lambda: gate._waiting_alone)
    start(newcomer)
    until(lambda: len(gate._changed._waiters) == 2)

    first.leave.set()
    assert alone.inside.wait(SECONDS)

    assert not newcomer.inside.is_set()
    alone.leave.set()
    assert newcomer.inside.wait(SECONDS)
    newcomer.leave.set()


def test_who_waits_to_pass_together_comes_before_the_next_who_passes_alone(gate, start):
    """Else scans that follow on each other would keep a commit waiting for ever."""
    alone, later = Passing(gate.exclusive), Passing(gate.exclusive)
    together = [Passing(gate.shared) for _ in range(3)]
    start(alone)
    assert alone.inside.wait(SECONDS)
    start(later)
    until(lambda: gate._waiting_alone)
    for each in together:
        start(each)
    until(lambda: len(gate._changed._waiters) == 4)

    alone.leave.set()

    for each in together:
        assert each.inside.wait(SECONDS)
    assert not later.inside.is_set()
    for each in together:
        each.leave.set()
    assert later.inside.wait(SECONDS)
    later.leave.set()


def test_a_commit_passes_however_many_scans_always_wait(gate, start):
    """Each scan comes back before the one after it has left, so that there is no moment in which none waits."""
    is_over = threading.Event()
    turns = [0, 0]

    def scan(own):
        while not is_over.is_set():
            with gate.exclusive():
                turns[own] += 1
                until(lambda: gate._waiting_alone or is_over.is_set())

    start(lambda: scan(0))
    start(lambda: scan(1))
    until(lambda: all(turns))

    try:
        passing = Passing(gate.shared)
        start(passing)
        assert passing.inside.wait(SECONDS)
        passing.leave.set()
    finally:
        is_over.set()


@pytest.mark.parametrize("how", ["shared", "exclusive"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_whoever_fails_inside_leaves_the_gate_open(gate, start, how, error):
    with pytest.raises(error), getattr(gate, how)():
        raise error

    for other in (gate.shared, gate.exclusive):
        passing = Passing(other)
        start(passing)
        assert passing.inside.wait(SECONDS)
        passing.leave.set()
        until(lambda: not gate._is_alone and not gate._together)


def test_who_is_interrupted_while_he_waits_keeps_nobody_out(gate, start, monkeypatch):
    first, newcomer = Passing(gate.shared), Passing(gate.shared)
    start(first)
    assert first.inside.wait(SECONDS)

    def interrupted(condition):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gate._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), gate.exclusive():
            pytest.fail("it passed")

    start(newcomer)
    assert newcomer.inside.wait(SECONDS)
    first.leave.set()
    newcomer.leave.set()


@pytest.mark.parametrize("was_let_in", [False, True])
def test_who_is_interrupted_while_he_waits_to_pass_together_is_not_waited_for(gate, start, monkeypatch, was_let_in):
    """Also when his turn had come, and he did not know yet."""
    alone, later = Passing(gate.exclusive), Passing(gate.exclusive)
    start(alone)
    assert alone.inside.wait(SECONDS)
    wait = gate._changed.wait

    def interrupted(condition):
        if was_let_in:
            alone.leave.set()
            while not condition():
                assert wait(SECONDS)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gate._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), gate.shared():
            pytest.fail("it passed")

    alone.leave.set()
    start(later)
    assert later.inside.wait(SECONDS)
    later.leave.set()


def test_who_gives_up_passing_alone_lets_in_those_whom_he_kept_out(gate, start, monkeypatch):
    first, newcomer = Passing(gate.shared), Passing(gate.shared)
    start(first)
    assert first.inside.wait(SECONDS)
    wait_for, wait = gate._changed.wait_for, gate._changed.wait

    def interrupted(condition):
        monkeypatch.setattr(gate._changed, "wait_for", wait_for)
        start(newcomer)
        while not gate._changed._waiters:
            wait(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(gate._changed, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt), gate.exclusive():
        pytest.fail("it passed")

    assert newcomer.inside.wait(SECONDS)
    first.leave.set()
    newcomer.leave.set()


def test_what_is_done_alone_is_never_seen_in_part(gate, start):
    """Two values that are equal outside of the gate; those who pass alone change them one after the other."""
    state = {"a": 0, "b": 0}
    seen = []

    def change():
        for _ in range(200):
            with gate.exclusive():
                state["a"] += 1
                state["b"] += 1

    def look():
        for _ in range(200):
            with gate.shared():
                seen.append(state["a"] - state["b"])

    for _ in range(4):
        start(change)
        start(look)
    until(lambda: state["b"] == 800)

    with gate.shared():
        assert set(seen) <= {0}
