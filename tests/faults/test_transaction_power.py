"""Power cuts among transactions: what was answered is there, and of what was not all or nothing, in every bucket.

Logs and staged rows lie on a ``LossyDisk`` that loses power at any step; the KV is left or gone. The catalog lies on
the real disk, and has what was written to it, but for the mark that the last commit is done: that is not synced, so the
cut may take it back.
"""

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.campaign import IS_FULL, write_figures

import kolk
from kolk.client.database import Database
from kolk.codec.transaction import CSN_KEY, PREFIX, decode_record, encode_record
from kolk.engine.database import Engine
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.meta import Meta, MetaChange
from kolk.testing.disk import LossyDisk, PowerCut
from kolk.testing.sectors import Crash

SEEDS = 150 if IS_FULL else 12
MODEL = "power cut among transactions, modelled: logs and staged rows on a lossy disk"
KEYS = range(12)
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("total", "bigint", agg="sum"),
        kolk.Column("times", "bigint", agg="count_rows"),
    ],
    primary_key="k",
)


@contextmanager
def opened(folder: Path, disk: LossyDisk) -> Iterator[tuple[Engine, Database]]:
    config = kolk.EngineConfig(kv_block_cache_bytes=2**22, kv_write_buffer_bytes=2**22, log_segment_bytes=4_096)
    with closing(Folder(folder, OsDisk())) as held:
        engine = Engine(held, config, disk=disk)
        with Database(engine, engine.close, Rng()) as db:
            yield engine, db


def transact(db: Database, version: int) -> str:
    with db.transaction("job", version) as tx:
        for _ in range(2):
            tx.put([{"k": k, "total": version} for k in KEYS], table="t")
    return tx.verdict


def work_until_the_power_goes(folder: Path, disk: LossyDisk, steps: int) -> int:
    """Commit version after version; the last one that was answered."""
    answered = 1
    disk.power_off_after(steps)
    with suppress(PowerCut), opened(folder, disk) as (_, db):
        while True:
            assert transact(db, answered + 1) == "committed"
            answered += 1
    return answered


def take_back_the_mark(path: Path) -> None:
    """Leave the catalog without the last that was written to it, if that was the mark of a commit."""
    with closing(Meta(path)) as meta:
        csn = meta.get(CSN_KEY)
        for found in meta.list(PREFIX):
            record = decode_record(found.value)
            if csn is not None and record.csn == int(csn.value) and record.is_done:
                pending = replace(record, is_done=False, ends={})
                meta.write([MetaChange(found.key, encode_record(pending), found.version)])


def check(folder: Path, disk: LossyDisk, answered: int) -> None:
    with opened(folder, disk) as (engine, db):
        table = db.table("t")
        rows = table.scan().to_arrow().to_pylist()
        assert {row["k"] for row in rows} == set(KEYS)
        [times] = {row["times"] for row in rows}
        assert times in (2 * answered, 2 * answered + 2), f"{answered} versions were answered"
        last = times // 2
        assert {row["total"] for row in rows} == {sum(2 * version for version in range(1, last + 1))}
        assert engine.transactions.commits.pending() == []
        assert transact(db, last) == "duplicate"
        assert transact(db, last + 1) == "committed"
        assert {row["times"] for row in table.scan().to_arrow().to_pylist()} == {times + 2}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_cut_at_any_step_leaves_every_transaction_whole_and_those_that_were_answered(tmp_path, seed):
    rng, disk, folder = random.Random(seed), LossyDisk(seed), tmp_path / "data"
    with opened(folder, disk) as (_, db):
        db.create_table("t", SCHEMA, buckets=3, merge_engine="aggregation")
        assert transact(db, 1) == "committed"
    answered = work_until_the_power_goes(folder, disk, rng.randint(0, 120))
    folder.rename(tmp_path / "left")

    for mode in Crash:
        shutil.copytree(tmp_path / "left", folder)
        if rng.random() < 0.5:
            take_back_the_mark(folder / "meta.sqlite")
        if rng.random() < 0.5:
            shutil.rmtree(folder / "tables")
        check(folder, disk.crash(mode), answered)
        shutil.rmtree(folder)
    write_figures(MODEL, times=len(Crash), puts=answered, lost=0, duplicated=0)
