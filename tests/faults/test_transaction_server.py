"""Transactions and a server that is killed, or whose answers are lost: all of one is there, once, or nothing of it."""

import random
import threading
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.clients import Client, finish
from tests.faults.relay import Relay, lost_answer
from tests.faults.servers import PATIENCE_SECONDS, Server
from tests.faults.worker import SMALL_FILES

import kolk
from kolk.errors import StagingGone
from kolk.model.transaction import CommitRequest, Staging, Verdict

KILLS = 60 if IS_FULL else 8
SEED = 20_261_123
TABLE = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("version", "bigint")], "id")
EVENTS = kolk.Schema([kolk.Column("app", "string"), kolk.Column("version", "bigint"), kolk.Column("n", "int")])
ROWS = 20


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data", SMALL_FILES) as server:
        server.start()
        yield server


@pytest.fixture
def db(server):
    with kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
        yield db


def about(table: kolk.Table, **changes) -> Staging:
    given = {"handle": uuid.uuid4().hex, "app": "app", "version": 1, "table": table.info.id, "schema_id": 1}
    return Staging(**given | changes)


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": id, "version": 1} for id in ids], schema=TABLE.arrow)


def again(server: Server) -> None:
    server.kill_after(0)
    server.start()


# --- kill -9 between the steps


def test_a_kill_while_rows_are_staged_leaves_nothing_and_is_told(server, db):
    table = db.create_table("t", TABLE, buckets=3)
    service, staging = db._link.service, about(table)
    service.stage(staging, 0, rows(1))
    again(server)

    for attempt in (lambda: service.stage(staging, 1, rows(2)), lambda: service.seal(staging, 1)):
        with pytest.raises(StagingGone):
            attempt()

    assert table.scan().to_arrow().num_rows == 0
    assert db.transactions() == []


def test_what_was_sealed_survives_a_kill_and_is_committed_once(server, db):
    table = db.create_table("t", TABLE, buckets=3)
    service, staging = db._link.service, about(table)
    service.stage(staging, 0, rows(1, 2))
    again(server)
    with pytest.raises(StagingGone):
        service.seal(staging, 1)
    staging = about(table)
    service.stage(staging, 0, rows(1, 2))
    sealed = service.seal(staging, 1)
    again(server)
    assert service.seal(staging, 1) == sealed
    request = CommitRequest(app="app", version=1, handles={table.info.id: (staging.handle,)})

    first = service.commit_transaction(request)
    again(server)
    second = service.commit_transaction(request)

    assert first == second
    assert first.verdict is Verdict.COMMITTED
    assert table.scan().to_arrow().num_rows == 2
    assert sum(1 for batch in table.changelog() for _ in range(batch.num_rows)) == 2


class Job(Client):
    """Runs transactions over two tables, one version after the other, each until it is committed."""

    def __init__(self, url: str, app: str, stop: threading.Event) -> None:
        super().__init__(url)
        self.app = app
        self.verdicts: list[str] = []
        self._stopped = stop

    def work(self, db: kolk.Database) -> None:
        while not self._stopped.is_set():
            self.verdicts.append(self._committed(db, len(self.verdicts)))

    def _committed(self, db: kolk.Database, version: int) -> str:
        while True:
            try:
                with db.transaction(self.app, version) as tx:
                    start = int(self.app) * 1_000
                    tx.put([{"id": start + n, "version": version} for n in range(ROWS)], table="t")
                    tx.put([{"app": self.app, "version": version, "n": n} for n in range(ROWS)], table="events")
                return tx.verdict
            except StagingGone:
                continue  # the server was killed before it was sealed: run it again


@pytest.mark.timeout(900)
def test_jobs_go_on_through_kills_of_their_server_and_every_transaction_is_there_once_and_whole(server, db):
    db.create_table("t", TABLE, buckets=4)
    db.create_table("events", EVENTS, buckets=3)
    rng, stop = random.Random(SEED), threading.Event()
    jobs = [Job(server.url, str(number), stop) for number in range(3)]
    for job in jobs:
        job.start()
    for _ in range(KILLS):
        before = sum(len(job.verdicts) for job in jobs)
        assert Ticks(PATIENCE_SECONDS).until(
            lambda before=before: (
                sum(len(job.verdicts) for job in jobs) > before + 2 or any(job.failure for job in jobs)
            )
        )
        server.kill_after(rng.uniform(0, 0.1))
        server.start()
    stop.set()
    finish(jobs)

    counts = Counter(
        (row["app"], row["version"]) for batch in db.table("events").changelog() for row in batch.to_pylist()
    )
    last = {row["id"]: row["version"] for row in db.table("t").scan().to_arrow().to_pylist()}
    expected = {(job.app, version): ROWS for job in jobs for version in range(len(job.verdicts))}
    write_figures("kill -9 of a server under transactions", times=KILLS, transactions=len(expected), wrong=0)
    assert counts == expected
    assert last == {int(job.app) * 1_000 + n: len(job.verdicts) - 1 for job in jobs for n in range(ROWS)}
    assert {verdict for job in jobs for verdict in job.verdicts} == {"committed"}, "a retry knows its own handles"
    assert [one.state for one in db.transactions()] == ["done"] * 3
    assert server.failures() == []


# --- answers that are lost


def test_answers_that_are_lost_stage_nothing_twice_and_a_commit_knows_that_it_is_its_own(server, db):
    table = db.create_table("t", TABLE, buckets=3)

    def counted(name: str) -> int:
        return db.status()["transactions"][name]

    with Relay(server.url) as relay, kolk.connect(relay.url, timeout=PATIENCE_SECONDS) as remote:
        service = remote._link.service
        staging = about(table)
        with lost_answer(relay, lambda: counted("staged_bytes") > 0):
            service.stage(staging, 0, rows(1, 2))
        with lost_answer(relay, lambda: db.transactions()[0].rows == 3):
            service.stage(staging, 1, rows(3))
        with lost_answer(relay, lambda: db.transactions()[0].state == "sealed"):
            sealed = service.seal(staging, 2)
        with lost_answer(relay, lambda: counted("committed") == 1):
            result = service.commit_transaction(
                CommitRequest(app="app", version=1, handles={table.info.id: (staging.handle,)})
            )

        assert relay.cuts == 4

    assert sealed.rows == 3
    assert result.verdict is Verdict.COMMITTED
    assert (counted("committed"), counted("duplicates")) == (1, 0)
    assert table.scan().to_arrow().num_rows == 3
