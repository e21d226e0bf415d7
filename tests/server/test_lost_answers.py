"""Answers that are lost on the way: what is asked again must not be done to something else, nor be denied."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.faults.attacker import Ticks
from tests.faults.relay import Relay, lost_answer
from tests.faults.servers import PATIENCE_SECONDS

import kolk
from kolk.errors import Closed, ColumnLockConflict, Unreachable
from kolk.wire import messages as m

SUMS = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("n", "bigint", agg="sum")], "id")
TOKENS = (("admin", "*=all"), ("janitor", "*=drop"))


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture
def near(server, connect):
    """A connection that loses nothing."""
    return connect(server)


@pytest.fixture
def relay(server):
    with Relay(server.url) as relay:
        yield relay


@pytest.fixture
def far(relay, connect):
    """A connection over a wire that may be cut."""
    return connect(relay.url)


@pytest.fixture
def sums(near):
    return near.create_table("t", SUMS, merge_engine="aggregation")


def count(table):
    return table.scan().to_arrow().num_rows


def owned_once(table, rows):
    """Waits for rows to be there, and then owns their column."""
    writers = []

    def is_there():
        if count(table) < rows:
            return False
        writers.append(table.writer("job", ["n"]))
        return True

    return writers, is_there


def test_a_put_whose_answer_was_lost_and_that_is_refused_then_is_in_doubt(sums, far, relay):
    """It has been applied the first time. Who would put it again under another tag would count it twice."""
    table = far.table("t")
    writers, is_there = owned_once(sums, 1)

    with pytest.raises(Unreachable, match=r"tag=error\.tag") as caught, lost_answer(relay, is_there):
        table.put({"id": 1, "n": 1})
    writers[0].close()
    table.put({"id": 1, "n": 1}, tag=caught.value.tag)

    assert isinstance(caught.value.__cause__, ColumnLockConflict)
    assert sums.get_one(id=1) == {"id": 1, "n": 1}


def test_a_stream_of_puts_whose_answers_were_lost_is_in_doubt_from_the_first_of_them(sums, far, relay):
    table, batches = far.table("t"), [[{"id": id, "n": 1}] for id in range(3)]
    writers, is_there = owned_once(sums, 3)

    with pytest.raises(Unreachable) as caught, lost_answer(relay, is_there):
        list(table.put_stream(batches))
    writers[0].close()
    list(table.put_stream(batches, tag=caught.value.tag))

    assert isinstance(caught.value.__cause__, ColumnLockConflict)
    assert sums.scan().to_arrow()["n"].to_pylist() == [1, 1, 1]


def test_what_is_refused_after_those_in_doubt_were_answered_is_refused(sums, far, relay):
    writers = []

    def batches():
        for id in range(8):
            if id == 7:  # by now all that were under way when the wire was cut are answered
                writers.append(sums.writer("job", ["n"]))
            yield [{"id": id, "n": 1}]

    results = far.table("t").put_stream(batches())
    with lost_answer(relay, lambda: count(sums) == 4):
        first = next(results)

    with pytest.raises(ColumnLockConflict):
        list(results)

    assert first.offsets
    assert sums.scan().to_arrow()["n"].to_pylist() == [1] * count(sums)
    writers[0].close()


def put_alone(table, rows):
    table.put(rows)


def put_in_stream(table, rows):
    list(table.put_stream([rows]))


@pytest.mark.parametrize("puts", [put_alone, put_in_stream])
def test_a_put_whose_connection_is_closed_before_its_answer_is_in_doubt(sums, far, relay, puts):
    """Closed by another thread. That it is closed tells nothing about what was sent before."""
    table, row = far.table("t"), {"id": 1, "n": 1}
    relay.mute()
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(puts, table, [row])
        assert Ticks(PATIENCE_SECONDS, 0.01).until(lambda: count(sums) == 1)
        far.close()
        with pytest.raises(Unreachable, match="closed before the server had answered") as caught:
            put.result(PATIENCE_SECONDS)

    sums.put([row], tag=caught.value.tag)

    assert sums.get_one(id=1) == row
    with pytest.raises(Closed):
        table.put([row])


# --- what is removed


class LosesOneAnswer:
    """A client of Flight to whom the answer to one kind of request is lost, once; something else happens then."""

    def __init__(self, client, kind, meanwhile):
        self._client = client
        self._kind = kind
        self._meanwhile = [meanwhile]

    def do_action(self, action, options):
        answer = list(self._client.do_action(action, options))
        if self._meanwhile and isinstance(m.decode_action(action.body), self._kind):
            self._meanwhile.pop()()
            raise ConnectionError("lost")
        return answer

    def __getattr__(self, name):
        return getattr(self._client, name)


@pytest.fixture
def losing(monkeypatch):
    """Let a database lose the answer to a request of a kind, and something happen meanwhile."""

    def lose(db, kind, meanwhile):
        service = db._link.service
        monkeypatch.setattr(service, "_client", LosesOneAnswer(service._client, kind, meanwhile))

    return lose


def test_one_who_may_not_look_drops_no_table_that_was_made_since(wire, losing):
    near, janitor = (wire.connect(token=wire.token(name, grant)) for name, grant in TOKENS)
    near.create_table("t", SUMS)
    losing(janitor, m.DropTable, lambda: near.create_table("t", SUMS).put({"id": 1, "n": 1}))

    with pytest.raises(Unreachable):
        janitor.drop_table("t")

    assert near.table("t").get_one(id=1) == {"id": 1, "n": 1}
    janitor.drop_table("t")
    assert near.tables() == []


def test_a_partition_that_was_not_there_is_not_dropped_once_it_is(near, losing):
    days = kolk.Schema([kolk.Column("day", "string"), kolk.Column("id", "bigint")], ["day", "id"])
    table = near.create_table("t", days, partition_by=["day"])
    losing(near, m.DropPartition, lambda: table.put({"day": "a", "id": 1}))

    with pytest.raises(Unreachable):
        table.drop_partition(day="a")

    assert count(table) == 1
    table.drop_partition(day="a")
    assert table.partitions() == []


def test_a_table_is_truncated_once(sums, near, losing):
    """Whoever sees it empty, and fills it, does not lose what was acknowledged."""
    sums.put({"id": 1, "n": 1})
    losing(near, m.Truncate, lambda: sums.put({"id": 2, "n": 1}))

    with pytest.raises(Unreachable):
        sums.truncate()

    assert sums.scan().to_arrow()["id"].to_pylist() == [2]


def test_what_is_asked_once_waits_for_a_server_all_the_same(sums, server, serve):
    """Nothing was asked of one that is not there, nor over a connection that died with it."""
    sums.put({"id": 1, "n": 1})
    port = int(server.url.rpartition(":")[2])

    server.close()
    restart = threading.Timer(1.0, lambda: serve(port=port))
    restart.start()
    sums.truncate()
    restart.join()

    assert count(sums) == 0
