"""kill -9 among snapshots and leases: at every step of taking, leasing, letting go, dropping and restoring.

Whatever the step: the database opens, no acknowledged row is lost, what is leased is shown exactly, every snapshot that
is listed leads to the present with its changelog, and no file is there that nobody can explain.
"""

import json
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaign import write_figures
from tests.faults.killing import FORKS, killed
from tests.faults.snapshot_worker import BUCKETS, CONFIG, HOLDER, LEASE, SCHEMA, TTL_SECONDS, die, live, rows
from tests.spec.kept import follow, numbers, present, same_rows
from tests.spec.replica import by_key

import kolk
from kolk.client.database import Database
from kolk.engine.database import Engine
from kolk.errors import LeaseLost, TableNotFound
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.faults import Step

KILLS = 6
KILLS_LONG = 200
AT_RANDOM, AT_A_STEP = "kill -9 among snapshots and leases", "kill -9 at a step of a snapshot or a lease"

TAKING = [
    (Step.BEFORE_FLUSH, 1),
    (Step.AFTER_FLUSH, 2),
    (Step.BEFORE_CHECKPOINT, 1),
    (Step.AFTER_CHECKPOINT, 1),
    (Step.AFTER_CHECKPOINT, 2),
    (Step.BEFORE_COPY, 1),
    (Step.HALF_COPY, 1),
    (Step.AFTER_COPY, 1),
    (Step.BEFORE_COPY, 3),
    (Step.BEFORE_SHARE, 1),
    (Step.AFTER_SHARE, 1),
    (Step.BEFORE_MANIFEST, 1),
    (Step.AFTER_MANIFEST, 1),
    (Step.BEFORE_MANIFEST, 2),
    (Step.AFTER_MANIFEST, 2),
    (Step.BEFORE_UNPUBLISH, 1),
    (Step.AFTER_UNPUBLISH, 1),
    (Step.BEFORE_UNPUBLISH, 2),
    (Step.BEFORE_REMOVAL, 1),
    (Step.HALF_REMOVAL, 1),
    (Step.AFTER_REMOVAL, 1),
    (Step.AFTER_REMOVAL, 2),
    (Step.BEFORE_RECORD, 1),
    (Step.AFTER_RECORD, 1),
]
LETTING_GO = [
    (Step.BEFORE_RECORD, 1),
    (Step.AFTER_RECORD, 1),
    (Step.BEFORE_UNPUBLISH, 1),
    (Step.AFTER_UNPUBLISH, 1),
    (Step.BEFORE_REMOVAL, 1),
    (Step.HALF_REMOVAL, 1),
    (Step.AFTER_REMOVAL, 1),
]
DROPPING = [
    (Step.BEFORE_RECORD, 1),
    (Step.AFTER_RECORD, 1),
    (Step.BEFORE_REMOVAL, 1),
    (Step.HALF_REMOVAL, 1),
    (Step.AFTER_REMOVAL, 1),
    (Step.BEFORE_REMOVAL, 2),
    (Step.HALF_REMOVAL, 2),
    (Step.AFTER_REMOVAL, 2),
    (Step.BEFORE_RECORD, 2),
    (Step.AFTER_RECORD, 2),
    (Step.BEFORE_RECORD, 3),
    (Step.AFTER_RECORD, 3),
]
RESTORING = [
    (Step.BEFORE_RESTORE, 1),
    (Step.BEFORE_RESTORED_FILE, 1),
    (Step.HALF_COPY, 1),
    (Step.AFTER_RESTORED_FILE, 1),
    (Step.BEFORE_RESTORED_FILE, 3),
    (Step.AFTER_RESTORE, 1),
    (Step.BEFORE_RESTORE, 2),
    (Step.AFTER_RESTORE, 2),
]


class Opened:
    """The database of a folder, looked at by somebody who has it for himself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Engine(Folder(folder), CONFIG)
        self.db = Database(self.engine, self.engine.close, Rng())

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    @property
    def table(self) -> kolk.Table:
        return self.db.table("t")

    def leased(self, id: str) -> list[dict[str, Any]]:
        """The rows that a lease shows."""
        service = self.db._link.service
        with self.db.join_lease(id) as lease:
            found = self.table.scan(source=lease).to_arrow().to_pylist()
            offsets = lease.offsets["t"]
            assert follow(self.table, found, offsets) == present(self.table)
            lease.detach()
            service.join_lease(id, HOLDER)
            return found

    def check_snapshots(self) -> None:
        """Each that is listed is whole, and with the changelog after it leads to the present."""
        found = numbers(self.table)
        for bucket, ids in found.items():
            now = self.table.scan(buckets=[bucket]).to_arrow()
            for id in ids:
                with self.table.lease(snapshots={bucket: id}, lease_id="look") as lease:
                    shown = self.table.scan(source=lease).to_arrow().to_pylist()
                    start = lease.offsets["t"]
                    log = self.table.changelog(start=start, buckets=[bucket])
                    assert replayed(shown, log) == by_key(self.table, now)

    def check_files(self) -> None:
        """Nothing is there but the snapshots that are listed."""
        self.engine.reap()
        names: dict[str, set[str]] = {}
        for each in self.table.snapshots():  # an empty one is a manifest and nothing else
            names.setdefault(each.bucket, set()).update(
                [f"{each.id}.manifest", *[str(each.id)] * bool(each.size_bytes)]
            )
        for path in (self.folder / "snapshots").glob("*/*/*"):
            assert {each.name for each in path.iterdir()} == names.get(path.name, set())
        assert list((self.folder / "checkpoints").iterdir()) == []


def replayed(shown: list[dict[str, Any]], log: Iterator[Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows that changes make of others."""
    state = {(row["id"],): row for row in shown}
    for batch in log:
        for change in batch.to_pylist():
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            if change["_change_type"] in ("+I", "+U"):
                state[row["id"],] = row
            else:
                assert state.pop((row["id"],)) == row
    return state


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three snapshots, the first of them leased, and rows that are in none of them."""
    folder = tmp_path_factory.mktemp("made") / "data"
    with Opened(folder) as opened:
        table = opened.db.create_table("t", SCHEMA, buckets=BUCKETS, options={"table.log.max-bytes": "1"})
        table.put(rows(0))
        table.take_snapshot()
        opened.db._link.service.acquire_lease(LEASE, HOLDER, {table.info.id: None}, TTL_SECONDS)
        for n in (1, 2):
            table.put(rows(n, range(n, 40, 2)))
            table.take_snapshot()
        table.put(rows(3, range(30, 50)))
        assert numbers(table) == {"0": [1, 2, 3], "1": [1, 2, 3]}
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="module")
def expected(made):
    with Opened(made) as opened:
        return present(opened.table)


def named(steps: list[tuple[Step, int]]) -> Any:
    return pytest.mark.parametrize(("step", "occurrence"), steps, ids=lambda part: getattr(part, "value", part))


@named(TAKING)
def test_a_snapshot_is_there_or_not_when_the_process_dies_while_it_is_taken(folder, expected, step, occurrence):
    killed(folder, step, occurrence, die, "take")

    with Opened(folder) as opened:
        assert present(opened.table) == expected
        assert same_rows(opened.leased(LEASE), rows(0))
        opened.check_snapshots()
        opened.check_files()
        taken = {each.bucket: each for each in opened.table.take_snapshot()}
        assert {name: each.offset for name, each in taken.items()} == {
            name: each["end"] for name, each in opened.table.describe()["offsets"].items()
        }
        assert {each.id for each in taken.values()} == {4}
        with opened.table.scan(source="snapshot") as scan:
            assert scan.consistent
            assert by_key(opened.table, scan.to_arrow()) == expected
        opened.check_files()
        assert numbers(opened.table) == {"0": [1, 3, 4], "1": [1, 3, 4]}
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


@named([(Step.BEFORE_RECORD, 1), (Step.AFTER_RECORD, 1)])
@pytest.mark.parametrize("deed", ["lease", "renew", "release"])
def test_a_lease_is_as_before_or_as_after_when_the_process_dies_while_it_is_written(
    folder, expected, deed, step, occurrence
):
    killed(folder, step, occurrence, die, deed)

    is_done = step is Step.AFTER_RECORD
    with Opened(folder) as opened:
        assert present(opened.table) == expected
        ids = {each.id: each for each in opened.db.leases()}
        assert ids.keys() == ({LEASE, "new"} if deed == "lease" and is_done else {LEASE})
        kept = opened.db.describe_lease(LEASE)
        assert kept.ttl_seconds == (2 * TTL_SECONDS if deed == "renew" and is_done else TTL_SECONDS)
        assert kept.tables["t"].snapshots == ({"1": 1} if deed == "release" and is_done else {"0": 1, "1": 1})
        with opened.db.join_lease(LEASE) as lease:
            shown = opened.table.scan(source=lease).to_arrow()
            assert set(shown["n"].to_pylist()) == {0}
            lease.detach()
        if "new" in ids:
            assert {row["n"] for row in opened.leased("new")} == {0, 1, 2}
            assert opened.db.drop_lease("new")
        opened.check_snapshots()
        opened.check_files()
        assert numbers(opened.table)["1"] == [1, 2, 3]
        assert numbers(opened.table)["0"] == ([2, 3] if deed == "release" and is_done else [1, 2, 3])
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


@named(LETTING_GO)
def test_what_a_lease_kept_goes_in_the_end_when_the_process_dies_while_it_is_dropped(
    folder, expected, step, occurrence
):
    killed(folder, step, occurrence, die, "drop_lease")

    with Opened(folder) as opened:
        assert present(opened.table) == expected
        if step is Step.BEFORE_RECORD:
            assert same_rows(opened.leased(LEASE), rows(0))
            assert opened.db.drop_lease(LEASE)
        with pytest.raises(LeaseLost):
            opened.db.join_lease(LEASE)
        opened.check_files()
        assert numbers(opened.table) == {"0": [2, 3], "1": [2, 3]}
        opened.check_snapshots()
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


@named(DROPPING)
def test_a_table_with_snapshots_is_there_or_gone_when_the_process_dies_while_it_is_dropped(
    folder, expected, step, occurrence
):
    killed(folder, step, occurrence, die, "drop_table")

    with Opened(folder) as opened:
        if (step, occurrence) == (Step.BEFORE_RECORD, 1):
            assert present(opened.table) == expected
            assert same_rows(opened.leased(LEASE), rows(0))
            opened.check_snapshots()
            opened.db.drop_table("t")
        with pytest.raises(TableNotFound):
            opened.db.table("t")
        assert opened.db.leases() == []
        assert list((folder / "snapshots").iterdir()) == list((folder / "tables").iterdir()) == []
        again = opened.db.create_table("t", SCHEMA)
        assert again.snapshots() == []
        assert present(again) == {}
    with Opened(folder) as opened:
        assert opened.engine._meta.list("lease/") == opened.engine._meta.list("snapshot-cut/") == []
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


@pytest.fixture
def without_kv(folder):
    """The log was trimmed below the leased snapshot, and the KVs are lost: only a snapshot can bring the rows back."""
    with Opened(folder) as opened:
        opened.db.drop_lease(LEASE)
        opened.table.take_snapshot()
        opened.engine.tick()
        assert all(each["start"] > 0 for each in opened.table.describe()["offsets"].values())
    for kv in (folder / "tables").rglob("kv"):
        shutil.rmtree(kv)
    return folder


@named(RESTORING)
def test_a_kv_comes_back_whole_when_the_process_dies_while_it_is_restored(without_kv, expected, step, occurrence):
    killed(without_kv, step, occurrence, die, "restore")

    for _ in range(2):
        with Opened(without_kv) as opened:
            assert present(opened.table) == expected
            opened.check_snapshots()
            opened.check_files()
    write_figures(AT_A_STEP, times=1, lost=0, duplicated=0)


# --- at random


class Ledger:
    """What a process was told is done, line by line; the last line may be of something that it did not finish."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[int, int] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.doubtful: set[str] = set()
        self.puts = self.put_rows = 0
        self._at = 0

    def read(self, found: dict[int, int]) -> None:
        """Take over what is new; a put that was under way may be in some buckets, which is seen from what is there."""
        text = self.path.read_text() if self.path.exists() else ""
        new, self._at = text[self._at :], len(text)
        under_way: dict[int, int] = {}
        for line in new.splitlines():
            [what, *_] = noted = json.loads(line)
            assert what != "failed", noted
            match what:
                case "putting":
                    under_way = dict.fromkeys(noted["putting"]["ids"], noted["putting"]["n"])
                case "put":
                    self.rows |= under_way
                    self.puts += 1
                    self.put_rows += len(under_way)
                    under_way = {}
                case "dropping" | "leasing":
                    self.doubtful.add(noted[what])
                    self.leases.pop(noted[what], None)
                case "dropped":
                    self.doubtful.discard(noted[what])
                case "leased":
                    self.doubtful.discard(noted[what])
                    self.leases[noted[what]] = noted
        for id, n in under_way.items():
            if found.get(id) == n:
                self.rows[id] = n
        assert found == self.rows


@pytest.mark.timeout(300)
def test_nothing_that_was_acknowledged_or_leased_is_lost_when_the_process_is_killed_at_random(tmp_path):
    kill_at_random(tmp_path, random.Random(2_026), KILLS)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_nothing_is_lost_when_the_process_is_killed_at_random_two_hundred_times(tmp_path):
    kill_at_random(tmp_path, random.Random(2_027), KILLS_LONG)


def kill_at_random(tmp_path: Path, rng: random.Random, kills: int) -> None:
    """Let a process put, take, lease and drop, kill it, and look at what is left, again and again."""
    folder = tmp_path / "data"
    with Opened(folder) as opened:
        opened.db.create_table("t", SCHEMA, buckets=BUCKETS, options={"table.log.max-bytes": "1"})
    ledger, leased = Ledger(tmp_path / "account"), 0
    for death in range(kills):
        process = FORKS.Process(target=live, args=(folder, death, ledger.path))
        process.start()
        process.join(rng.uniform(0.1, 1.5))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL

        with Opened(folder) as opened:
            ledger.read({row["id"]: row["n"] for row in present(opened.table).values()})
            ids = {each.id for each in opened.db.leases()}
            assert ledger.leases.keys() <= ids <= ledger.leases.keys() | ledger.doubtful
            for id in sorted(ids):
                state = opened.db.describe_lease(id).tables["t"]
                if id in ledger.leases:
                    noted = ledger.leases[id]
                    assert (state.offsets, state.snapshots) == (noted["offsets"], noted["snapshots"])
                    leased += 1
                opened.leased(id)
            opened.check_snapshots()
            opened.check_files()

    assert leased
    write_figures(AT_RANDOM, times=kills, puts=ledger.puts, rows=ledger.put_rows, lost=0, duplicated=0)
