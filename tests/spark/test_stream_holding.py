"""What a streaming query holds, from when on and for how long: the log by a follower, its first rows by a lease."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.pages import held, put

from kolk.errors import FollowerTaken, TooManyFollowers
from kolk.model.follower import FOLLOWERS_MAX
from kolk.testing.clock import ManualClock


def test_the_log_is_held_until_a_batch_is_committed(pages, query, db, name):
    put(pages, range(10))
    stream = query(start="earliest", follower="copy")
    stream.trigger()
    (follower,) = [each for each in db.followers() if each.table == name]
    assert (follower.name, follower.lag) == ("copy", 10)

    put(pages, range(10, 15))
    stream.trigger()

    (follower,) = [each for each in db.followers() if each.table == name]
    assert follower.lag == 5


def test_two_queries_under_one_name_are_noticed(pages, query):
    put(pages, range(10))
    one = query(start="earliest", follower="same")
    one.trigger()
    query(start="earliest", follower="same").trigger()
    put(pages, range(10, 15))

    with pytest.raises(FollowerTaken, match="a name of its own"):
        one.trigger()


def test_a_follower_that_an_operator_dropped_is_made_anew(pages, query, db, name):
    put(pages, range(10))
    stream = query(start="earliest", follower="mine")
    stream.trigger()
    db.drop_follower(name, "mine")
    put(pages, range(10, 15))

    stream.trigger()

    assert sorted(row["id"] for row in stream.everything()) == list(range(15))
    assert [each.name for each in db.followers() if each.table == name] == ["mine"]


@pytest.mark.parametrize("start", ["full", "earliest", "latest"])
def test_a_query_that_dies_before_its_first_offsets_are_written_leaves_no_follower(pages, query, db, name, start):
    put(pages, range(10))
    stream = query(start=start)
    for _ in range(3):
        stream.reader.latestOffset(stream.reader.initialOffset(), ReadAllAvailable())
        stream.start()
    assert held(db, name)[1] == 0

    stream.trigger()

    assert held(db, name)[1] == 1


def test_a_first_batch_that_nobody_plans_is_followed_by_one_that_holds_the_log(pages, query, db, name):
    """Spark asks for no partitions if it finds that a query needs none of the rows."""
    put(pages, range(10))
    stream = query(start="earliest")
    end = stream.reader.latestOffset(stream.reader.initialOffset(), ReadAllAvailable())
    assert held(db, name) == (0, 0)

    stream.reader.latestOffset(end, ReadAllAvailable())

    assert held(db, name) == (0, 1)


def fill(pages, prefix):
    service = pages.link.service
    for each in range(FOLLOWERS_MAX):
        service.open_follower(pages.info.id, f"{prefix}{each}", each, None)


def test_a_query_that_there_is_no_room_for_goes_on_and_says_so_and_holds_the_log_later(
    pages, query, db, name, caplog, monkeypatch
):
    put(pages, range(10))
    fill(pages, "spark-")
    stream = query(changes="cdc")

    for ids in (range(10, 15), range(15, 20)):
        stream.drain()
        put(pages, ids)
    (warning,) = caplog.messages
    assert f"db.drop_follower('{name}', NAME)" in warning
    assert "spark-0 (since" in warning

    db.drop_follower(name, "spark-0")
    clock = ManualClock()
    monkeypatch.setattr(stream.reader._opened.table.link, "clock", clock)
    clock.advance(seconds=10_000_000)
    stream.drain()
    assert held(db, name) == (0, FOLLOWERS_MAX)
    assert sorted(stream.table()) == list(range(20))
    assert len(caplog.messages) == 1


def test_a_query_under_a_name_that_there_is_no_room_for_is_refused(pages, query):
    fill(pages, "mine-")
    stream = query(follower="copy")

    with pytest.raises(TooManyFollowers, match="drop some first"):
        stream.trigger()


def test_nothing_but_a_follower_is_left_after_a_query(pages, query, db, name):
    put(pages, range(100))
    stream = query(maxRowsPerTrigger="10", changes="cdc")
    stream.drain()
    put(pages, [5], "z")
    stream.drain()
    stream.stop()

    assert held(db, name) == (0, 1)
    assert [scan for scan in db.scans() if scan.table == name and not scan.is_drained] == []


def test_a_query_that_has_waited_for_a_while_lets_go_of_what_it_has_read(pages, query, db, name, monkeypatch):
    """Spark says that a batch is committed when it begins the next one, and there may be none for a long time."""
    put(pages, range(10))
    stream = query()
    stream.trigger()
    assert held(db, name) == (1, 1)
    clock = ManualClock()
    monkeypatch.setattr(stream.reader._opened.table.link, "clock", clock)

    for seconds in (0, 29, 2):
        clock.advance(seconds=seconds)
        assert stream.trigger() is False

    assert held(db, name) == (0, 1)
    put(pages, [50])
    stream.start()
    stream.drain()
    assert [row["id"] for row in stream.rows[1]] == [50]
