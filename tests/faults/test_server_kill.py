"""kill -9 of a server under load: its clients go on by themselves, and nothing is lost, doubled or out of order."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import pytest
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.clients import (
    EVENTS,
    ROWS,
    Changes,
    Follower,
    Reader,
    Writer,
    check_changes,
    create_tables,
    replayed,
)
from tests.faults.puts import WRITERS
from tests.faults.servers import PATIENCE_SECONDS, Server
from tests.faults.witness import Findings, scanned
from tests.faults.worker import SMALL_FILES

import kolk

KILLS = 100 if IS_FULL else 30
RESTARTS = 20 if IS_FULL else 5
SEED = 20_261_120
RESTART_SECONDS_MAX = 3.0
"""A client that finds out one by one that its streams are gone takes more than twice as long."""


@dataclass
class Load:
    """Writers, followers and a reader at work."""

    url: str
    acks: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stop: threading.Event = field(default_factory=threading.Event)
    writers: list[Writer] = field(init=False)
    followers: dict[str, Follower] = field(init=False)
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.writers = [Writer(self.url, number, self.acks, self.stop) for number in range(WRITERS)]
        self.followers = {table: Follower(self.url, table) for table in (ROWS, EVENTS)}
        self.reader = Reader(self.url, self.writers, self.stop)
        for client in self.clients:
            client.start()

    @property
    def clients(self) -> list[Writer | Follower | Reader]:
        return [*self.writers, *self.followers.values(), self.reader]

    def wait_for_acks(self, count: int) -> None:
        """Until so many more puts are acknowledged."""
        for _ in range(count):
            assert self.acks.acquire(timeout=PATIENCE_SECONDS), f"nothing is acknowledged any more: {self.failures()}"

    def failures(self) -> list[str]:
        return [f"{type(client).__name__}: {client.failure!r}" for client in self.clients if client.failure]

    def finish(self) -> None:
        """Let the writers end their puts, the followers come to the end of the logs, and all of them go."""
        self.stop.set()
        for client in (*self.writers, self.reader):
            client.join(PATIENCE_SECONDS)
            assert not client.is_alive(), f"a client hangs: {client}"
        with kolk.connect(self.url) as db:
            for name, follower in self.followers.items():
                offsets = create_tables(db)[name].describe()["offsets"]
                _catch_up(follower, {bucket: both["end"] for bucket, both in offsets.items() if both["end"]})

    def figures(self) -> dict[str, int]:
        acked = [put for writer in self.writers for put in writer.acked.values()]
        return {"puts": len(acked), "rows": sum(count for _, count in acked)}


def _catch_up(follower: Follower, ends: dict[str, int]) -> None:
    waited = threading.Event()
    for _ in range(round(PATIENCE_SECONDS / 0.05)):
        if follower.changes.ends == ends or not follower.is_alive():
            break
        waited.wait(0.05)
    follower.close()
    follower.join(PATIENCE_SECONDS)
    assert not follower.is_alive(), "a follower does not end when it is closed"


@contextmanager
def loaded(tmp_path) -> Iterator[tuple[Server, Load]]:
    """A server under load. The load ends here, whatever happens; a test ends it before, to look."""
    with Server(tmp_path / "data", SMALL_FILES) as server:
        load = Load(server.start())
        try:
            yield server, load
        finally:
            load.stop.set()


def check(server: Server, load: Load, tmp_path) -> Findings:
    """Everything that is wrong: with what the clients saw, and with what is in the folder when the server is gone."""
    findings = Findings()
    for name, follower in load.followers.items():
        check_changes(name, follower.changes, load.writers, findings)
    rows = replayed(load.followers[ROWS].changes, findings)
    with kolk.connect(server.url) as db:
        if scanned(create_tables(db)[ROWS]) != rows:
            findings.wrong.append("the table is not what its followed changelog leads to")
    if server.stop() != 0:
        findings.wrong.append("the server did not end well")
    with kolk.connect(tmp_path / "data", config=SMALL_FILES) as db:
        tables = create_tables(db)
        if scanned(tables[ROWS]) != rows:
            findings.wrong.append("the table in the folder is not what its followed changelog leads to")
        for name, follower in load.followers.items():
            if _read(tables[name]).rows != follower.changes.rows:
                findings.wrong.append(f"the changelog of {name} is not what its follower saw")
    findings.wrong += load.reader.stale + server.failures()
    return findings


def counted(findings: Findings) -> dict[str, int]:
    return {
        "lost": len(findings.lost),
        "duplicated": len(findings.duplicated),
        "wrong": len(findings.wrong),
    }


def _read(table: kolk.Table) -> Changes:
    changes = Changes()
    for batch in table.changelog():
        changes.add(batch)
    return changes


@pytest.mark.timeout(1_800)
def test_clients_go_on_through_kills_of_their_server_and_nothing_is_lost_or_doubled(tmp_path):
    rng, kills = random.Random(SEED), 0
    with loaded(tmp_path) as (server, load):
        while kills < KILLS:
            load.wait_for_acks(rng.randint(1, 150))
            server.kill_after(rng.uniform(0, 0.05))
            kills += 1
            while rng.random() < 1 / 6:  # also while it opens the folder
                server.begin()
                server.kill_after(rng.uniform(0, 0.4))
                kills += 1
            server.start()
        load.wait_for_acks(50)
        load.finish()
        assert load.failures() == []

        findings = check(server, load, tmp_path)

    write_figures("kill -9 of a server under load", times=kills, **load.figures(), **counted(findings))
    assert not findings, f"seed {SEED}: {findings}"
    assert load.reader.lookups > 0


@pytest.mark.timeout(600)
def test_clients_go_on_through_restarts_of_their_server_and_see_no_error(tmp_path):
    rng = random.Random(SEED)
    with loaded(tmp_path) as (server, load):
        for _ in range(RESTARTS):
            load.wait_for_acks(rng.randint(50, 150))
            assert server.stop() == 0
            server.start()
        load.wait_for_acks(50)
        load.finish()
        assert load.failures() == []

        findings = check(server, load, tmp_path)

    write_figures("restart of a server under load", times=RESTARTS, **load.figures(), **counted(findings))
    assert not findings, f"seed {SEED}: {findings}"


def test_the_first_call_after_a_restart_does_not_wait_for_what_the_old_server_has_forgotten(tmp_path):
    with Server(tmp_path / "data", SMALL_FILES) as server, kolk.connect(server.start()) as db:
        table = create_tables(db)[ROWS]
        _call_together(table, 16)
        server.kill_after(0)
        server.start()

        began = perf_counter()
        table.get(["anything"])

        assert perf_counter() - began < RESTART_SECONDS_MAX


def _call_together(table: kolk.Table, callers: int) -> None:
    """So many lookups at the same time, after which the client keeps as many streams open."""
    together = threading.Barrier(callers)

    def look_up() -> None:
        for _ in range(20):
            together.wait(PATIENCE_SECONDS)
            table.get(["anything"])

    threads = [threading.Thread(target=look_up) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_check_notices_rows_that_are_lost_doubled_or_out_of_order():
    writer = Writer("", 0, threading.Semaphore(0), threading.Event())
    writer.acked = {1: (EVENTS, 2), 2: (EVENTS, 1)}
    good, findings = Changes(), Findings()
    good.offsets["0"] = [0, 1, 2]
    good.rows["0"] = [("+I", "a", (0, 1, 0)), ("+I", "b", (0, 1, 1)), ("+I", "a", (0, 2, 0))]
    check_changes(EVENTS, good, [writer], findings)
    assert not findings

    bad = Changes()
    bad.offsets["0"] = [0, 2, 3]
    bad.rows["0"] = [("+I", "a", (0, 1, 0)), ("+I", "a", (0, 1, 0)), ("+I", "a", (0, 2, 0))]
    check_changes(EVENTS, bad, [writer], findings)

    assert findings.lost == ["row 1 of put 0/1 in served.events"]
    assert len(findings.duplicated) == 1
    assert findings.wrong == ["served.events 0: the offsets are not 0 to 2"]
