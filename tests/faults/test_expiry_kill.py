"""A process is killed while expired rows go: each step is then done or not done, and the table is its changelog."""

import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import kolk
from kolk.testing.faults import Step

ROWS = 10_000
WORKER = """
import sys
from pathlib import Path
from kolk import EngineConfig
from kolk.engine.database import Engine
from kolk.runtime.folder import Folder
from kolk.testing.faults import KillingDisk, KillingKv, KillSwitch, Step

switch = KillSwitch(Step(sys.argv[2]), int(sys.argv[3]), report=Path(sys.argv[4]))
open_kv = lambda path, memory: KillingKv(path, memory, switch)
Engine(Folder(Path(sys.argv[1])), EngineConfig(), disk=KillingDisk(switch), open_kv=open_kv).tick()
"""


def fill(folder) -> None:
    """Rows of which every second one has expired long ago, and the others will not for long."""
    with kolk.connect(folder) as db:
        schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("at", "date")], "k")
        table = db.create_table("t", schema, options={"table.kv.ttl": "7d", "table.kv.ttl.column": "at"})
        numbers = np.arange(ROWS, dtype=np.int32)
        dates = pa.array(np.where(numbers % 2, 1, 50_000).astype(np.int32)).cast(pa.date32())
        table.put(pa.table({"k": numbers, "at": dates}))


def replayed(table) -> set[int]:
    left: set[int] = set()
    for batch in table.changelog():
        for kind, key in zip(batch["_change_type"].to_pylist(), batch["k"].to_pylist(), strict=True):
            (left.discard if kind == "-D" else left.add)(key)
    return left


@pytest.mark.parametrize(
    ("step", "occurrence", "frames"),
    [
        (Step.BEFORE_APPEND, 1, 0),
        (Step.HALF_APPEND, 2, 1),
        (Step.AFTER_APPEND, 2, 2),
        (Step.BEFORE_APPLY, 1, 1),
        (Step.AFTER_APPLY, 3, 3),
    ],
)
def test_a_kill_leaves_every_step_done_or_not_done_and_the_next_round_goes_on(tmp_path, step, occurrence, frames):
    folder, report = tmp_path / "data", tmp_path / "report"
    fill(folder)
    worker = [sys.executable, "-c", WORKER, str(folder), step.value, str(occurrence), str(report)]

    died = subprocess.run(worker, timeout=120, check=False)

    assert (died.returncode, report.read_text().strip()) == (-signal.SIGKILL, step.value)
    with kolk.connect(folder) as db:
        table = db.table("t")
        rows = set(table.scan().to_arrow()["k"].to_pylist())
        assert rows == replayed(table)
        assert len(rows) == ROWS - min(frames * 4_096, ROWS) // 2
        assert rows >= set(range(0, ROWS, 2))

        db._service.tick()

        assert set(table.scan().to_arrow()["k"].to_pylist()) == replayed(table) == set(range(0, ROWS, 2))
        assert table.describe()["offsets"]["0"]["end"] == ROWS + ROWS // 2
