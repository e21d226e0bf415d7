"""kill -9 among partitions: at every step of making and dropping one, and at random moments of all at once.

What was acknowledged of a partition that lives is there; one whose drop was acknowledged stays dropped, and its files
are gone after the next start; the record of what came and went has no hole.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kolk
from kolk.errors import Corrupted
from kolk.model.partition import PARTITIONS

FULL = os.environ.get("KOLK_FULL") == "1"
RANDOM_KILLS = 60 if FULL else 8
SCHEMA = kolk.Schema([kolk.Column("day", "int"), kolk.Column("key", "int")], primary_key=["day", "key"])

STEPS = ("before record", "after record", "before files", "half files", "after files")
DROPPER = '''
"""Dies at a step of making or dropping a partition."""

import os
import signal
import sys
from pathlib import Path

import kolk
from kolk.engine.database import Engine
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.meta import Meta

folder, step, what = sys.argv[1:]
armed = False


def at(place):
    if armed and place == step:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingDisk(OsDisk):
    def remove_tree(self, path):
        at("before files")
        if armed and step == "half files":
            for file in sorted(Path(path).rglob("*.log")):
                file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().remove_tree(path)
        at("after files")


class KillingMeta(Meta):
    def write(self, changes):
        at("before record")
        super().write(changes)
        at("after record")


engine = Engine(Folder(Path(folder)), kolk.EngineConfig(), disk=KillingDisk())
engine._meta.__class__ = KillingMeta
table = kolk.Database(engine, engine.close, Rng()).table("t")
armed = True
if what == "drop":
    table.drop_partition(day=1)
else:
    table.put([{"day": 1, "key": 5}, {"day": 3, "key": 5}])
'''
WRITER = '''
"""Makes, fills and drops partitions until it is killed, and says what is done."""

import json
import random
import sys

import kolk
from kolk.errors import PartitionNotFound

rng = random.Random(int(sys.argv[2]))
with kolk.connect(sys.argv[1]) as db:
    table = db.table("t")
    for _ in range(100_000):
        day = rng.randrange(6)
        if rng.random() < 0.3:
            print(json.dumps({"dropping": day}), flush=True)
            table.drop_partition(day=day, if_exists=True)
            print(json.dumps({"dropped": day}), flush=True)
        else:
            rows = [[(day + place) % 6, rng.randrange(10**6)] for place in range(3)]
            print(json.dumps({"putting": rows}), flush=True)
            table.put([{"day": day, "key": key} for day, key in rows])
            print(json.dumps({"put": rows}), flush=True)
'''


@pytest.fixture
def folder(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        db.create_table("t", SCHEMA, partition_by=["day"])
    return tmp_path / "data"


def rows_of(table):
    with table.scan() as scan:
        return {(row["day"], row["key"]) for row in scan.to_arrow().to_pylist()}


def folders_of(folder, table):
    return {int(each.name) for each in (folder / "tables" / str(table.info.id)).iterdir()}


def check_record(folder, table):
    """The events, from the first on, make the partitions that there are; and there are no other files."""
    told, names = [], {}
    list(table.changelog(start={PARTITIONS: 1}, on_partition=told.append))
    assert [event.position for event in told] == list(range(2, len(told) + 2))
    for event in told:
        assert (event.partition in names) == (event.kind == "dropped")
        if event.kind == "dropped":
            del names[event.partition]
        else:
            names[event.partition] = event.position - 1
    assert names == {each.name: each.id for each in table.partitions()}
    assert folders_of(folder, table) <= set(names.values())


@pytest.mark.parametrize("what", ["drop", "put"])
@pytest.mark.parametrize("step", STEPS)
def test_a_partition_is_whole_or_gone_when_the_process_dies_at_a_step(folder, what, step):
    with kolk.connect(folder) as db:
        db.table("t").put([{"day": day, "key": key} for day in (1, 2) for key in range(9)])
    before = {(day, key) for day in (1, 2) for key in range(9)}

    died = subprocess.run([sys.executable, "-c", DROPPER, str(folder), step, what], check=False, timeout=60)

    assert died.returncode == (0 if what == "put" and "files" in step else -signal.SIGKILL)
    with kolk.connect(folder) as db:
        table = db.table("t")
        check_record(folder, table)
        if what == "put":
            added = {(1, 5), (3, 5)} if died.returncode == 0 else set()
            assert rows_of(table) == before | added
            assert len(table.partitions()) == (2 if step == "before record" else 3)
        elif step == "before record":
            assert rows_of(table) == before
        else:
            assert rows_of(table) == {(2, key) for key in range(9)}
            assert folders_of(folder, table) == {2}
        table.put([{"day": 1, "key": 77}])
        assert (1, 77) in rows_of(table)


class Account:
    """What a writer was told, line by line: certain until it began something that it did not finish."""

    def __init__(self):
        self.rows = {}
        self.under_way = None

    def note(self, line):
        if not line.endswith("\n"):
            return
        [(what, value)] = json.loads(line).items()
        self.under_way = (what, value) if what in ("putting", "dropping") else None
        if what == "put":
            for day, key in value:
                self.rows.setdefault(day, set()).add(key)
        elif what == "dropped":
            self.rows.pop(value, None)

    def check(self, found):
        """Acknowledged rows are there; nothing else is, but perhaps what was under way; and take over what is there."""
        certain = {(day, key) for day, keys in self.rows.items() for key in keys}
        what, value = self.under_way or (None, None)
        perhaps = {(day, key) for day, key in value} if what == "putting" else set()
        if what == "dropping" and not any(day == value for day, _ in found):
            certain = {row for row in certain if row[0] != value}
        assert certain <= found <= certain | perhaps
        self.rows, self.under_way = {}, None
        for day, key in found:
            self.rows.setdefault(day, set()).add(key)


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_comes_back_when_the_process_is_killed_at_random_moments(folder):
    rng, account = random.Random(2_026), Account()
    for death in range(RANDOM_KILLS):
        lines = rng.randrange(1, 200)
        command = [sys.executable, "-c", WRITER, str(folder), str(death)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for count, line in enumerate(writer.stdout):
                account.note(line)
                if count == lines:
                    writer.kill()

        with kolk.connect(folder) as db:
            table = db.table("t")
            account.check(rows_of(table))
            check_record(folder, table)


def test_files_of_a_partition_that_the_catalog_never_knew_stop_the_start(folder):
    with kolk.connect(folder) as db:
        table = db.table("t")
        table.put([{"day": 1, "key": 1}])
    strange = Path(folder) / "tables" / str(table.info.id) / "77"
    strange.mkdir()

    with pytest.raises(Corrupted, match="partition 77"):
        kolk.connect(folder)

    assert strange.exists()
