"""Spark streams into Kolk while drivers, JVMs, tasks and the server die: nothing is lost, and nothing counts twice.

The faults are planned, and the test holds that each of them came. The naive query beside the others shows that they
are real: it goes through fewer of them, and counts wrong.
"""

import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("pyspark")

from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.servers import PATIENCE_SECONDS, Server
from tests.faults.spark_campaign import (
    BUCKETS,
    COMMIT_FAULTS,
    COPY,
    SCHEMA,
    TASK_FAULTS,
    Campaign,
    Size,
    batch_answer,
    misses,
    planned,
    unexplained,
    without_order,
    write_source,
)
from tests.faults.spark_driver import Query
from tests.faults.spark_faults import DURING, Fault, Faults
from tests.faults.worker import SMALL_FILES
from tests.spec.replica import by_key, replayed

import kolk

SEED = 20_261_117
WAYS = ("transaction", "undo")
FILES_AT_ONCE, FILES_AT_ONCE_NAIVE, ROWS_AT_ONCE = 2, 12, 200
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SHORT = Size(files=20, task_faults=12, kills=3, server_kills=2)
LONG = Size(files=60, task_faults=44, kills=11, server_kills=6)
CAMPAIGNS = {way: ((way,), LONG) for way in WAYS} if IS_FULL else {"both": (WAYS, SHORT)}


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data", SMALL_FILES) as server:
        server.start()
        yield server


@pytest.fixture
def db(server):
    with kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
        yield db


def queries_of(ways, folder):
    """One query for each way; one that follows the last of them; and the naive one."""
    found = [Query(way, f"chaos.{way}", way, str(folder / way), FILES_AT_ONCE) for way in ways]
    found.append(Query("copy", "chaos.copy", "transaction", str(folder / "copy"), ROWS_AT_ONCE, follows=ways[-1]))
    return [*found, Query("naive", "chaos.naive", "naive", str(folder / "naive"), FILES_AT_ONCE_NAIVE)]


def state(db, query):
    table = db.table(query.table)
    return by_key(table, table.scan().to_arrow())


@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_streams_are_exact_whatever_dies(tmp_path, server, db, name):
    ways, size = CAMPAIGNS[name]
    rng = random.Random(f"{SEED} {name}")
    write_source(tmp_path / "source", rng, size.files)
    expected = batch_answer(tmp_path / "source")
    queries = queries_of(ways, tmp_path)
    for query in queries:
        db.create_table(query.table, COPY if query.follows else SCHEMA, buckets=BUCKETS)
    plan = planned(rng, queries, size, size.batches(FILES_AT_ONCE))
    campaign = Campaign(tmp_path, server, queries, Faults.planned(tmp_path / "faults", plan))

    campaign.run(SEED, size.kills + 1)

    assert Ticks(PATIENCE_SECONDS).until(lambda: not campaign.left_behind()), "what a driver started outlives it"
    rows = {query.name: state(db, query) for query in queries}
    found = {query.name: misses(without_order(rows[query.name]), expected) for query in queries}
    write_chaos_figures(campaign, size, rows=sum(row["n"] for row in expected.values()), found=found, ways=ways)
    for query in queries:
        assert replayed(db.table(query.table)) == rows[query.name], "the changelog leads elsewhere"
    for way in ways:
        assert found[way] == ([], [])
        assert without_order(rows[way]) == expected
    assert rows["copy"] == rows[ways[-1]]
    assert found["naive"][1], "the faults hurt nobody, so they prove nothing"

    check_that_it_was_hard(campaign, size, ways)
    assert [each.state for each in db.transactions() if each.state != "done"] == []
    assert [lock for lock in db.locks() if lock.is_dirty or lock.is_recovering] == []
    server.kill_after(0)
    server.start()
    assert {query.name: state(db, query) for query in queries} == rows
    assert server.failures() == []


@pytest.mark.parametrize(("ways", "size"), [(WAYS, SHORT), (WAYS[:1], LONG), (WAYS[1:], LONG)])
def test_the_plan_has_faults_of_every_kind(tmp_path, ways, size):
    queries, batches = queries_of(ways, tmp_path), size.batches(FILES_AT_ONCE)

    plan = planned(random.Random(1), queries, size, batches)

    kinds = [(fault.point, fault.act) for fault in plan if fault.query in ways]
    kills = [fault for fault in plan if fault.act.startswith(("driver", "zombie"))]
    assert set(COMMIT_FAULTS) < set(kinds)
    assert len(set(kinds) & set(TASK_FAULTS)) >= min(size.task_faults // 2, len(TASK_FAULTS))
    for way in ways:
        failures = [fault for fault in plan if fault.query == way and fault.act in ("raise", "exit")]
        assert len(failures) >= size.task_faults
    assert [fault.driver for fault in kills] == list(range(size.kills))
    assert sum(fault.act.startswith("server") for fault in plan) == size.server_kills
    assert all(fault.batch < batches for fault in plan)


def test_a_fault_strikes_once_and_not_too_early(tmp_path):
    fault = Fault(number=7, query="a", batch=3, point="before the commit", act="raise", driver=1)
    faults = Faults.planned(tmp_path / "faults", [fault])
    faults.tell("life", 0)
    faults.reach("a", 3, "before the commit")
    faults.tell("life", 1)
    for query, batch, point in (("a", 2, "before the commit"), ("b", 3, "before the commit"), ("a", 3, "in the abort")):
        faults.reach(query, batch, point)
    assert faults.struck() == []

    with pytest.raises(RuntimeError, match="fault 7"):
        faults.reach("a", 4, "before the commit")
    faults.reach("a", 4, "before the commit")

    assert faults.struck() == [fault]


def test_a_fault_during_a_commit_strikes_however_quick_that_is(tmp_path):
    fault = Fault(number=7, query="a", batch=0, point=DURING, act="server", seconds=0.05)
    faults = Faults.planned(tmp_path / "faults", [fault])
    faults.tell("life", 0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        faults.tell("server", victim.pid)

        faults.during("a", 0, lambda: None)

        assert victim.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def check_that_it_was_hard(campaign, size, ways):
    """Every fault came, batches were written and committed again, and nothing but faults made a query fail."""
    faults = campaign.faults
    assert sorted(fault.number for fault in faults.struck()) == [fault.number for fault in faults.plan()]
    assert (campaign.deaths, campaign.restarts) == (size.kills, size.server_kills)
    commits = Counter((line["query"], line["batch"]) for line in faults.noted("commit"))
    for way in ways:
        assert sum(query == way and times > 1 for (query, _), times in commits.items()) > 1
    assert unexplained(faults) == []


def write_chaos_figures(campaign, size, rows, found, ways):
    struck = Counter(fault.act for fault in campaign.faults.struck() if fault.query != "naive")
    figures = {
        "rows": rows * len(ways),
        "lost": sum(len(found[way][0]) for way in ways),
        "duplicated": sum(len(found[way][1]) for way in ways),
    }
    write_figures("kill -9 of a Spark driver and its JVM", times=campaign.deaths, **figures)
    write_figures("failures of Spark's tasks and commits", times=struck["raise"] + struck["exit"], **figures)
    write_figures("kill -9 of a server under Spark", times=campaign.restarts, **figures)
    write_figures(
        "failures of Spark, a sink that puts in its tasks (the control: it should count twice)",
        times=sum(fault.query == "naive" for fault in campaign.faults.struck()),
        rows=rows,
        lost=len(found["naive"][0]),
        duplicated=len(found["naive"][1]),
    )
