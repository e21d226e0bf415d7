"""Writers in processes of their own, and a real ``kolk serve``: one is stopped and wakes too late, one is killed.

Whatever they had under way: what is committed is there once, and nothing else, in the table and in its changelog.
"""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest
from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, ROOT, write_figures
from tests.faults.owner_client import KEYS, PARTS, SCHEMA
from tests.faults.servers import PATIENCE_SECONDS
from tests.spec.kept import present
from tests.spec.replica import replayed

import kolk
from kolk.errors import ColumnLockConflict

TTL, LONG_TTL = 3.0, 60.0
"""One that runs out soon, and one that does not, on however busy a machine."""
KILLS = 12 if IS_FULL else 3
SEED = 20_261_125
REFUSED = {"Fenced", "LockExpired", "OwnerRolledBack", "PartialPut"}
"""A put whose first buckets came before the takeover, and whose last came after, is told so bucket by bucket."""


@pytest.fixture
def url(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-m", "kolk.cli.main", "serve", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with log.open("wb") as told, subprocess.Popen([*command, "--http-port", "-1"], cwd=ROOT, stderr=told) as process:
        try:
            assert Ticks(PATIENCE_SECONDS).until(lambda: b"\n" in log.read_bytes()), "the server does not start"
            yield json.loads(log.read_text().splitlines()[0])["url"]
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()


@pytest.fixture
def table(url):
    with kolk.connect(url) as db:
        yield db.create_table("t", SCHEMA, buckets=4)


class Client:
    """A process of ``tests.faults.owner_client``."""

    def __init__(self, url, ttl):
        command = [sys.executable, "-m", "tests.faults.owner_client", url, str(ttl)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.words = []

    def wait_for(self, puts):
        """Until it is told that so many puts are done."""
        while self.words.count("put") < puts:
            word = self.process.stdout.readline().strip()
            assert word in ("put", "commit"), f"it is refused before anything happens to it: {word!r}"
            self.words.append(word)

    def stop(self):
        """Let it stand still, all its threads, wherever it is."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self):
        """Let it wake up and come to its end; the answer is what it said since."""
        self.process.send_signal(signal.SIGCONT)
        said, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return said.split("\n")[:-1]


@contextmanager
def client(url, ttl=TTL):
    started = Client(url, ttl)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def contents(table):
    """The values, and those that the changelog makes, which must be the same."""
    found = present(table)
    assert replayed(table) == found
    return {key: row["pv"] for (key,), row in found.items()}


def check_refused(zombie, said):
    """It was told so, and nothing that it tried was done."""
    refused = [word for word in said if word not in ("put", "commit")]
    assert len(refused) == 1, said
    assert refused[0] in REFUSED
    assert zombie.process.returncode == 0


def test_a_zombie_whose_columns_another_owner_has_taken_writes_no_more(url, table):
    """It is stopped in the middle of an epoch, its time runs out, another takes its columns, it wakes up."""
    with client(url) as zombie:
        zombie.wait_for(2 * PARTS + 1)
        zombie.stop()
        taken = []

        def take():
            with suppress(ColumnLockConflict):
                taken.append(table.writer("other", ["pv"]))
            return bool(taken)

        assert Ticks(PATIENCE_SECONDS).until(take)
        (other,) = taken
        other.put([{"k": key, "pv": 100} for key in KEYS])
        other.commit()
        before = table.describe()["offsets"]

        said = zombie.go_on()

    check_refused(zombie, said)
    assert table.describe()["offsets"] == before
    other.close()
    with table.writer("job", ["pv"]) as again:
        epochs = again.committed + 1
    assert contents(table) == dict.fromkeys(KEYS, epochs + 100)
    assert epochs >= zombie.words.count("commit") >= 2


def test_a_zombie_in_whose_name_another_goes_on_writes_no_more(url, table):
    """The same owner, begun elsewhere: nobody waits for the time of the first to run out."""
    with client(url, LONG_TTL) as zombie:
        zombie.wait_for(2 * PARTS + 2)
        zombie.stop()
        heir = table.writer("job", ["pv"])
        epochs = heir.committed + 1
        assert contents(table) == dict.fromkeys(KEYS, epochs)
        heir.put([{"k": key, "pv": 1} for key in KEYS])
        before = table.describe()["offsets"]

        said = zombie.go_on()

    check_refused(zombie, said)
    assert table.describe()["offsets"] == before
    heir.commit()
    heir.close()
    assert contents(table) == dict.fromkeys(KEYS, epochs + 1)


def test_a_zombie_whose_time_is_up_is_told_so_though_nobody_has_come(url, table):
    with client(url) as zombie, kolk.connect(url) as db:
        zombie.wait_for(PARTS + 1)
        zombie.stop()
        assert Ticks(PATIENCE_SECONDS).until(lambda: not db.locks()[0].is_live)

        said = zombie.go_on()

    check_refused(zombie, said)
    assert {"LockExpired", "PartialPut"} & set(said)
    with table.writer("job", ["pv"]) as again:
        assert contents(table) == dict.fromkeys(KEYS, again.committed + 1)


@pytest.mark.timeout(600)
def test_what_a_writer_that_is_killed_has_not_committed_is_taken_back_by_the_next(url, table):
    rng = random.Random(SEED)
    epochs = 0
    for _ in range(KILLS):
        with client(url, LONG_TTL) as writer:
            writer.wait_for(rng.randint(1, 12))
            with pytest.raises(subprocess.TimeoutExpired):
                writer.process.wait(rng.uniform(0, 0.05))
            writer.process.kill()
            assert writer.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        with table.writer("job", ["pv"]) as heir:
            before, epochs = epochs, 0 if heir.committed is None else heir.committed + 1
            assert epochs >= before + writer.words.count("commit")
            assert contents(table) == (dict.fromkeys(KEYS, epochs) if epochs else {})

    write_figures("kill -9 of a writer that owns columns", times=KILLS, epochs=epochs, wrong=0)
    assert epochs
