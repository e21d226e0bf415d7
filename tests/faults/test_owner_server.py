"""Owners of columns and a server that is killed or restarted, or whose answers are lost: everything counts once."""

import random
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.clients import Client, finish
from tests.faults.owner_client import KEYS, SCHEMA
from tests.faults.relay import Relay, lost_answer
from tests.faults.servers import PATIENCE_SECONDS, Server
from tests.faults.worker import SMALL_FILES
from tests.spec.kept import present
from tests.spec.replica import replayed

import kolk
from kolk.errors import Fenced, KolkError, Unreachable
from kolk.model.ids import OwnerTag
from kolk.model.owner import Claim
from kolk.model.write import Action, Write

ENDS = 40 if IS_FULL else 8
SEED = 20_261_126
CLAIM = Claim(owner="job", columns=["pv"], ttl_seconds=60.0)


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data", SMALL_FILES, drain_seconds=1.0) as server:
        server.start()
        yield server


@pytest.fixture
def db(server):
    with kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
        yield db


@pytest.fixture
def table(db):
    return db.create_table("t", SCHEMA, buckets=3)


@pytest.fixture
def relay(server):
    with Relay(server.url) as relay:
        yield relay


@pytest.fixture
def far(relay, table):
    """The same table, over a wire that may be cut."""
    with kolk.connect(relay.url, timeout=PATIENCE_SECONDS) as far:
        yield far.table("t")


def rows(pv=1, column="pv"):
    return [{"k": key, column: pv} for key in KEYS]


def summed(table, column="pv"):
    """The values of a column, and those that the changelog makes, which must be the same."""
    found = present(table)
    assert replayed(table) == found
    return {key: row[column] for (key,), row in found.items() if row[column] is not None}


def are_there(table):
    """Whether all rows are, however far whoever writes them has come."""
    return table.scan().to_arrow().num_rows == len(KEYS)


def every(pv):
    return dict.fromkeys(KEYS, pv)


# --- answers that are lost


def test_no_answer_of_an_owner_that_is_lost_is_felt(db, table, relay, far):
    """Begin, put, commit, close, release: each is done when its answer is lost, and is not done twice."""

    def counts(name, count):
        return lambda: db.status()["owners"][name] == count

    with lost_answer(relay, counts("begun", 1)):
        w = far.writer("job", ["pv"])
    with lost_answer(relay, lambda: are_there(table)):
        w.put(rows())
    w.put(rows())
    with lost_answer(relay, counts("committed", 1)):
        w.commit(user_state=b"here")
    w.put(rows(50))
    with lost_answer(relay, lambda: db.locks() == []):
        w.close()

    assert relay.cuts == 4
    assert db.status()["owners"] | {"begun": 1, "committed": 1, "conflicts": 0} == db.status()["owners"]
    assert summed(table) == every(2)
    again = far.writer("job", ["pv"])
    assert (again.committed, again.user_state) == (0, b"here")
    with lost_answer(relay, lambda: db.locks() == []):
        again.release()
    assert far.writer("job", ["pv"]).committed is None


def test_no_answer_to_a_task_that_is_lost_is_felt(db, table, far, relay):
    service, id = far._link.service, table.info.id
    record = service.begin_owner(id, replace(CLAIM, attempt="run"))
    who = (id, record.number, record.fence)
    data = pa.RecordBatch.from_pylist(rows(), schema=pa.schema([SCHEMA.arrow.field("k"), SCHEMA.arrow.field("pv")]))
    write = Write(action=Action.UPSERT, rows=data, columns=("pv",), schema_id=1)

    with lost_answer(relay, lambda: True):
        task = service.begin_task(*who, 0, 1)
    with lost_answer(relay, lambda: are_there(table)):
        ends = service.put_owned(id, write, OwnerTag(record.number, record.fence, task.ticket, 0, 1))
    with lost_answer(relay, lambda: True):
        service.seal_task(*who, 1, task.ticket, dict.fromkeys(ends, 1), b"message")
    again = service.begin_task(*who, 0, 1)
    with lost_answer(relay, lambda: db.status()["owners"]["committed"] == 1):
        service.commit_tasks(*who, 0, {bucket: (task.ticket, 1) for bucket in ends}, b"")

    assert (again.ticket, again.message) == (task.ticket, b"message")
    assert service.begin_owner(id, replace(CLAIM, attempt="run")).fence == record.fence
    assert summed(table) == every(1)


def test_a_beginning_whose_answer_was_lost_takes_nothing_from_one_that_came_after(db, table, far, relay):
    heirs = []

    def has_an_heir():
        if db.status()["owners"]["begun"] == 1:
            heirs.append(table.writer("job", ["pv"]))
        return bool(heirs)

    with pytest.raises(Fenced), lost_answer(relay, has_an_heir):
        far.writer("job", ["pv"])

    (heir,) = heirs
    heir.put(rows())
    heir.commit()
    heir.close()
    assert summed(table) == every(1)


def test_the_release_of_somebody_elses_owner_is_not_asked_for_again(db, table, far, relay):
    """By the time that it is, the name may be another's."""
    table.writer("job", ["pv"]).put(rows())

    with pytest.raises(Unreachable), lost_answer(relay, lambda: db.locks() == []):
        far._link.service.release_owner(table.info.id, "job")

    assert not db.release_lock("t", "job")
    assert summed(table) == {}


# --- a server that ends


@pytest.mark.parametrize("owner", [None, "job"])
def test_a_put_that_is_sent_again_after_a_restart_counts_once(server, table, relay, far, owner):
    """The server has it on disk, its answer is lost, it is killed; the client sends it again to the next one."""
    put = far.put if owner is None else far.writer(owner, ["pv"]).put

    def is_restarted():
        if not are_there(table):
            return False
        server.kill_after(0)
        relay.cut()
        server.start()
        return True

    columns = {"columns": ["pv"]} if owner is None else {}
    with lost_answer(relay, is_restarted):
        put(rows(), **columns)
    put(rows(10), **columns)

    assert summed(table) == every(11)


def test_a_writer_whose_server_was_down_goes_on_within_its_time(server, table, db):
    """A restart gives its lock one time more, so nobody else has its columns meanwhile."""
    w = table.writer("job", ["pv"])
    w.put(rows())
    server.kill_after(0)
    server.start()

    with pytest.raises(KolkError, match="job"):
        table.writer("other", ["pv"])
    assert db.locks()[0].seconds_left > 50
    w.put(rows())
    w.commit()
    w.close()

    assert summed(table) == every(2)


class Owner(Client):
    """Adds 1 to its column of every key in each epoch, and commits it; a restless one begins anew all the time, in the
    middle of what it writes."""

    def __init__(self, url, column, stop, *, is_restless=False):
        super().__init__(url)
        self.column = column
        self.epochs = 0
        self._stopped = stop
        self._is_restless = is_restless

    def work(self, db):
        table = db.table("t")
        w = table.writer(self.column, [self.column])
        while not self._stopped.is_set():
            if self._is_restless:
                w.put(rows(1_000_000, self.column))
                w = table.writer(self.column, [self.column])
            w.put(rows(1, self.column)[::2])
            w.put(rows(1, self.column)[1::2])
            w.commit()
            self.epochs += 1
        w.close()


@pytest.mark.timeout(900)
def test_owners_go_on_through_ends_of_their_server_and_every_epoch_is_there_once(server, db, table):
    rng, stop = random.Random(SEED), threading.Event()
    owners = [Owner(server.url, "pv", stop), Owner(server.url, "other", stop, is_restless=True)]
    for owner in owners:
        owner.start()
    for _ in range(ENDS):
        before = [owner.epochs for owner in owners]
        assert Ticks(PATIENCE_SECONDS).until(
            lambda before=before: (
                all(owner.epochs > count for owner, count in zip(owners, before, strict=True))
                or any(owner.failure for owner in owners)
            )
        )
        if rng.random() < 0.3:
            assert server.stop() == 0
        else:
            server.kill_after(rng.uniform(0, 0.1))
        server.start()
    stop.set()
    finish(owners)

    write_figures("ends of a server under owners", times=ENDS, epochs=sum(owner.epochs for owner in owners), wrong=0)
    for owner in owners:
        assert summed(table, owner.column) == every(owner.epochs)
    assert db.locks() == []
    assert server.failures() == []
