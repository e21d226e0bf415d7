"""Everything that a server takes on has a limit, and each one is reached here."""

import threading

import pyarrow as pa
import pytest
from tests.faults.attacker import Ticks

import kolk
from kolk.config import ServerConfig
from kolk.errors import Busy, DiskFull, TimedOut, TooLarge
from kolk.server.admission import DiskGuard, PutBudget, Streams
from kolk.testing.clock import ManualClock


def test_streams_have_a_limit_and_one_principal_a_smaller_one():
    streams = Streams(ServerConfig(streams_max=3, streams_per_principal=2))

    with streams.one("a"), streams.one("a"):
        with pytest.raises(Busy, match="a has 2 streams"):
            streams.one("a").__enter__()
        with streams.one("b"), pytest.raises(Busy, match="3 streams open"):
            streams.one("c").__enter__()
        assert streams.open == 2
    with streams.one("a"):
        assert streams.open == 1


def test_limits_of_streams_hold_under_concurrent_opens():
    streams = Streams(ServerConfig(streams_max=10, streams_per_principal=10))
    start, tried, leave, refused = threading.Barrier(30), threading.Semaphore(0), threading.Event(), []

    def take():
        start.wait()
        try:
            with streams.one("a"):
                tried.release()
                leave.wait()
        except Busy as error:
            refused.append(error)
            tried.release()

    threads = [threading.Thread(target=take) for _ in range(30)]
    for thread in threads:
        thread.start()
    for _ in threads:
        tried.acquire()
    assert streams.open == 10
    leave.set()
    for thread in threads:
        thread.join()

    assert len(refused) == 20
    assert streams.open == 0


def test_a_drain_waits_for_what_is_served_and_takes_nothing_new():
    streams = Streams(ServerConfig())
    entered, leave = threading.Event(), threading.Event()

    def work():
        with streams.working():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    assert not streams.drain(0.01)
    with pytest.raises(Busy, match="shutting down"):
        streams.working().__enter__()
    with pytest.raises(Busy, match="shutting down"):
        streams.one("a").__enter__()
    leave.set()
    thread.join()
    assert streams.drain(10)


def test_a_put_waits_for_room_and_then_gets_it():
    budget = PutBudget(ServerConfig(puts_bytes_max=100, puts_wait_seconds=30))
    done = threading.Event()

    def second():
        with budget.take(60):
            done.set()

    with budget.take(60):
        thread = threading.Thread(target=second)
        thread.start()
        assert not done.is_set()
    thread.join()
    assert done.is_set()


def test_a_put_that_waits_too_long_is_busy_and_so_is_one_too_many():
    budget = PutBudget(ServerConfig(puts_bytes_max=100, puts_wait_seconds=0.01))

    with budget.take(100), pytest.raises(Busy, match="the put waited"):
        budget.take(1).__enter__()
    with budget.take(1_000):  # larger than all: served alone
        pass


class Line:
    """Puts that wait for their turn in threads of their own, one after the other."""

    def __init__(self, budget):
        self.served = []
        self.refused = []
        self._budget = budget
        self._threads = []

    def join(self, size):
        """Come once all who came before are waiting."""
        self._threads.append(threading.Thread(target=self._take, args=(size,)))
        self._threads[-1].start()
        assert Ticks(30, 0.001).until(lambda: len(self._budget._line) == len(self._threads))

    def end(self):
        for thread in self._threads:
            thread.join()

    def _take(self, size):
        try:
            with self._budget.take(size):
                self.served.append(size)
        except Busy:
            self.refused.append(size)


def test_whoever_comes_later_is_not_served_first_although_there_is_room_for_it():
    """Else what is large never has its turn while there are always some small ones."""
    budget = PutBudget(ServerConfig(puts_bytes_max=100, puts_wait_seconds=30))
    line = Line(budget)

    with budget.take(10):
        for size in (100, 1, 98, 1_000):
            line.join(size)
        assert line.served == []
    line.end()

    assert line.served[0] == 100
    assert set(line.served[1:3]) == {1, 98}  # there is room for both
    assert line.served[3:] == [1_000]


def test_when_the_first_gives_up_those_behind_it_are_served():
    budget = PutBudget(ServerConfig(puts_bytes_max=100, puts_wait_seconds=5))
    line = Line(budget)

    with budget.take(10):
        line.join(100)
        budget._seconds = 60  # of those who come now
        line.join(90)
        line.end()

    assert (line.served, line.refused) == ([90], [100])


def test_as_many_may_wait_behind_the_first_as_may_be_served():
    budget = PutBudget(ServerConfig(puts_bytes_max=100, puts_wait_seconds=30))
    line = Line(budget)

    with budget.take(10):
        for size in (100, 99, 100):
            line.join(size)
        with pytest.raises(Busy, match="too many puts are waiting"):
            budget.take(1).__enter__()
    line.end()

    assert line.served == [100, 99, 100]


def test_the_disk_is_looked_at_once_a_second():
    looks, clock = [], ManualClock()

    def used():
        looks.append(1)
        return 0.96

    guard = DiskGuard(used, 0.95, clock)
    for _ in range(3):
        with pytest.raises(DiskFull, match=r"96% full.*reads go on"):
            guard.check()
    assert len(looks) == 1
    clock.advance(seconds=1)
    assert guard.is_full
    assert len(looks) == 2


def test_above_the_disk_watermark_puts_are_refused_and_reads_go_on(serve, connect, schema, hurry):
    share = [0.5]
    server = serve(disk_used=lambda: share[0])
    db = connect(server)
    table = db.create_table("t", schema)
    table.put([{"id": 1, "v": "a"}])
    hurry(db, 2)
    share[0], server._disk._seen = 0.96, (float("-inf"), 0.0)

    with pytest.raises(DiskFull, match="96% full") as caught:
        table.put([{"id": 2, "v": "b"}])

    hurry(db, 30)
    assert table.get_one(id=1) == {"id": 1, "v": "a"}
    assert table.scan().to_arrow().num_rows == 1
    assert server.reasons() == ["puts are refused: the disk is 96% full"]
    share[0], server._disk._seen = 0.5, (float("-inf"), 0.0)
    table.put([{"id": 2, "v": "b"}], tag=caught.value.tag)
    assert table.get_one(id=2) == {"id": 2, "v": "b"}


def test_a_message_over_the_limit_is_refused_with_what_to_do(serve, connect, schema):
    db = connect(serve(message_bytes_max=100_000))
    table = db.create_table("t", schema)

    with pytest.raises(TooLarge, match="in pieces"):
        table.put(pa.table({"id": range(20_000), "v": ["x" * 10] * 20_000}))

    table.put([{"id": 1, "v": "a"}])
    assert table.get_one(id=1) == {"id": 1, "v": "a"}


def test_very_many_keys_are_looked_up_in_pieces_and_an_answer_has_a_limit(serve, connect, schema):
    db = connect(serve(message_bytes_max=2_000_000))
    table = db.create_table("t", schema, buckets=2)
    table.put(pa.table({"id": range(50_000), "v": ["x"] * 50_000}))

    found = table.get(pa.table({"id": range(49_990, 0, -1)}))

    assert found.column("id").to_pylist() == list(range(49_990, 0, -1))
    for start in range(0, 60, 20):
        table.put([{"id": number, "v": "y" * 50_000} for number in range(start, start + 20)])
    with pytest.raises(TooLarge, match="fewer at once"):
        table.get(list(range(60)))


def test_over_the_limit_of_streams_a_client_waits_and_then_hears_busy(serve, connect, schema):
    server = serve(streams_max=3)
    db = connect(server)
    table = db.create_table("t", schema)
    logs = [table.changelog(follow=True) for _ in range(3)]
    readers = [threading.Thread(target=lambda log=log: list(log)) for log in logs]
    for reader in readers:
        reader.start()
    while server._streams.open < 3:
        pass

    with pytest.raises(Busy, match="3 streams open"):
        connect(server, timeout=2)

    for log in logs:
        log.close()
    for reader in readers:
        reader.join()
    with kolk.connect(server.url) as another:  # waits until the streams have ended
        assert another.table("t").name == "t"


def test_waiting_puts_reach_the_writer_as_waiting_and_then_as_a_retriable_error(serve, connect, schema, hurry):
    server = serve(puts_bytes_max=1_000, puts_wait_seconds=0.05)
    db = connect(server)
    table = db.create_table("t", schema)
    hurry(db, 1)
    budget = server._transport._budget

    with budget.take(1_000), pytest.raises((Busy, TimedOut)) as caught:  # the last try may be cut off
        table.put([{"id": 1, "v": "a"}])

    assert caught.value.retriable
    hurry(db, 30)
    assert table.put([{"id": 1, "v": "a"}], tag=caught.value.tag).offsets == {"0": 1}
