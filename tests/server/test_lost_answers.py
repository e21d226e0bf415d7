"""Answers that are lost on the way: what is asked again must not be done to something else, nor be denied."""

import pytest
from tests.faults.relay import Relay, lost_answer

import kolk
from kolk.errors import ColumnLockConflict, Unreachable

SUMS = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("n", "bigint", agg="sum")], "id")


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
