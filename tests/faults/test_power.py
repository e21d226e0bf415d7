"""Power cuts: with durability ``machine`` nothing acknowledged is lost, with ``process`` it may be.

Two ways. In memory, over many seeds: the log lies on a ``LossyDisk`` that loses power between or in the middle
of its operations, and the KV, which is not behind the disk, is set back to what it was at the last flush, or to
nothing. And for real: ext4 in an image, a worker in it that is killed, and the image copied without what the
system had not written out.
"""

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.faults.campaign import IS_FULL, Campaign, campaign_figures, write_figures
from tests.faults.mounts import make_image, mounted, run, why_not

import kolk
from kolk.client.database import Database
from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import KolkError
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.disk import LossyDisk, PowerCut
from kolk.testing.sectors import Crash

SEEDS = 150 if IS_FULL else 12
CUTS = 30 if IS_FULL else 6
CONTROL_CUTS = 3
MODEL, REAL, CONTROL = (
    "power cut, modelled: log on a lossy disk, KV set back",
    "power cut, real: ext4 image copied without a sync",
    "power cut, real, durability `process` (the control: it should lose)",
)
SCHEMA = kolk.Schema([kolk.Column("key", "int"), kolk.Column("value", "bigint")], primary_key=["key"])


class Machine:
    """A database of one bucket whose log lies on a lossy disk, and what it acknowledged: the value of each key."""

    def __init__(self, folder: Path, seed: int, durability: str) -> None:
        self.folder = folder
        self.disk = LossyDisk(seed)
        self.acked: dict[int, int] = {}
        self.under_way: dict[int, int] = {}
        self.puts = self.rows = 0
        self._durability = durability
        self._rng = random.Random(seed)

    @contextmanager
    def open(self, disk: LossyDisk) -> Iterator[Database]:
        """The database, with its log on ``disk``."""
        config = EngineConfig(durability=self._durability, log_segment_bytes=4_096)
        with closing(Folder(self.folder / "data", OsDisk())) as held:
            engine = Engine(held, config, disk=disk)
            with Database(engine, engine.close, Rng()) as db:
                yield db

    def start(self) -> None:
        """Some rows in a database that is then closed well: the KV is flushed, and this is what is kept of it."""
        with self.open(self.disk) as db:
            table = db.create_table("t", SCHEMA)
            for _ in range(self._rng.randint(1, 10)):
                self._put(table)
        shutil.copytree(self.folder / "data", self.folder / "flushed")

    def work_until_the_power_goes(self) -> None:
        """Open, then puts, until the power goes at some step; what is under way then may be done or not."""
        self.disk.power_off_after(self._rng.randint(0, 130))
        with suppress(PowerCut), self.open(self.disk) as db:
            while True:
                self._put(db.table("t"))

    def after(self, disk: LossyDisk, *, with_kv: bool, steps: int | None = None) -> dict[int, int]:
        """The rows that the machine finds on this disk when it is on again, or loses power again after ``steps``."""
        shutil.rmtree(self.folder / "data")
        shutil.copytree(self.folder / "flushed", self.folder / "data")
        if not with_kv:
            shutil.rmtree(self.folder / "data/tables")
        if steps is not None:
            disk.power_off_after(steps)
        with self.open(disk) as db:
            table = db.table("t")
            rows = _rows(table)
            assert _folded(table) == rows, "the rows are not what the changelog says"
        return rows

    def lost(self, found: dict[int, int]) -> set[int]:
        """The keys that hold neither what was acknowledged nor, all together, what was under way."""
        if found == self.acked | self.under_way:
            return set()
        return {key for key in found.keys() | self.acked.keys() if found.get(key) != self.acked.get(key)}

    def _put(self, table: kolk.Table) -> None:
        count = self._rng.choice((1, 2, 30))
        keys = self._rng.sample(range(60), count)
        self.under_way = {key: self.puts * 100 + place for place, key in enumerate(keys)}
        table.put([{"key": key, "value": value} for key, value in self.under_way.items()])
        self.acked |= self.under_way
        self.under_way = {}
        self.puts += 1
        self.rows += count


def _rows(table: kolk.Table) -> dict[int, int]:
    with table.scan() as scan:
        return {row["key"]: row["value"] for row in scan.to_arrow().to_pylist()}


def _folded(table: kolk.Table) -> dict[int, int]:
    rows: dict[int, int] = {}
    for batch in table.changelog():
        for change in batch.to_pylist():
            if change["_change_type"] in ("-U", "-D"):
                assert rows.pop(change["key"]) == change["value"]
            else:
                rows[change["key"]] = change["value"]
    return rows


def _write_model_figures(machine: Machine, times: int) -> None:
    write_figures(MODEL, times=times, puts=machine.puts * times, rows=machine.rows * times, lost=0, duplicated=0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_machine_that_loses_power_at_any_step_finds_every_acknowledged_row(tmp_path, seed):
    machine = Machine(tmp_path, seed, "machine")
    machine.start()
    machine.work_until_the_power_goes()

    ways = [(mode, with_kv) for mode in Crash for with_kv in (True, False)]
    lost = {way: machine.lost(machine.after(machine.disk.crash(way[0]), with_kv=way[1])) for way in ways}

    assert not any(lost.values())
    _write_model_figures(machine, len(ways))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nor_does_it_matter_when_the_power_goes_again_during_recovery(tmp_path, seed):
    machine = Machine(tmp_path, seed, "machine")
    machine.start()
    machine.work_until_the_power_goes()
    rng = random.Random(seed)

    lost: set[int] = set()
    for mode in Crash:
        disk = machine.disk.crash(mode)
        for _ in range(3):
            with suppress(PowerCut):
                machine.after(disk, with_kv=True, steps=rng.randint(0, 12))
            disk = disk.crash(rng.choice(list(Crash)))
        lost |= machine.lost(machine.after(disk, with_kv=False))

    assert not lost
    _write_model_figures(machine, 4 * len(Crash))


def test_without_syncs_the_same_power_cuts_do_lose_rows(tmp_path):
    lost = 0
    for seed in range(4):
        machine = Machine(tmp_path / str(seed), seed, "process")
        machine.start()
        machine.work_until_the_power_goes()
        try:
            lost += len(machine.lost(machine.after(machine.disk.crash(Crash.DROP), with_kv=False)))
        except KolkError:
            lost += len(machine.acked)

    assert lost > 0


@pytest.mark.root
@pytest.mark.timeout(900)
def test_a_real_power_cut_loses_nothing_that_was_acknowledged(tmp_path):
    _skip_unless_mounting(REAL)
    campaign, found = _cut_power(tmp_path, CUTS, "machine")
    write_figures(REAL, **campaign_figures(campaign))

    assert not any(found), campaign.findings


@pytest.mark.root
@pytest.mark.timeout(300)
def test_a_real_power_cut_does_lose_what_was_never_synced(tmp_path):
    _skip_unless_mounting(CONTROL)
    campaign, found = _cut_power(tmp_path, CONTROL_CUTS, "process")
    write_figures(CONTROL, **campaign_figures(campaign))

    assert any(found)


def _skip_unless_mounting(fault: str) -> None:
    reason = why_not()
    if reason:
        write_figures(fault, skipped=reason)
        pytest.skip(f"no real power cut: {reason}")


def _cut_power(folder: Path, cuts: int, durability: str) -> tuple[Campaign, list[bool]]:
    """A campaign in an image that goes on, after each cut, with the copy of the image that the cut left."""
    image, target = folder / "image", folder / "mounted"
    make_image(image, "192M")
    rng = random.Random(len(durability))
    campaign = Campaign(target / "data", folder / "account", durability=durability)
    found: list[bool] = []
    try:
        for _ in range(cuts):
            with mounted(target, "-o", "loop,commit=300", image):
                with campaign.worker(campaign.job()) as worker:
                    worker.wait_for_acks(rng.randint(50, 300))
                    worker.kill_within(rng.uniform(0, 0.05))
                assert run("cp", "--sparse=always", image, folder / "copy").returncode == 0
            (folder / "copy").rename(image)
            with mounted(target, "-o", "loop,commit=300", image):
                found.append(_is_damaged(campaign))
            if found[-1]:
                break
    finally:
        campaign.close()
    return campaign, found


def _is_damaged(campaign: Campaign) -> bool:
    """Whether anything is amiss; a folder that does not open has lost all of it."""
    try:
        return bool(campaign.check())
    except KolkError as error:
        campaign.findings.lost += [str(error)] * campaign.account.rows
        return True
