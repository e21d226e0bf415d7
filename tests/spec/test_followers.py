"""Followers: named readers that go on where they were, hold the log, and never go back."""

import datetime
import threading

import pytest

import kolk
from kolk.errors import (
    Closed,
    FollowerNotFound,
    FollowerTaken,
    HolderLost,
    InvalidArgument,
    InvalidName,
    OffsetOutOfRange,
    TableNotFound,
    TooManyFollowers,
)
from kolk.model.follower import FOLLOWERS_MAX

LOG = kolk.Schema([kolk.Column("n", "int")])
DAY = 86_400
DEFAULT_TTL_DAYS = 7


@pytest.fixture
def events(timed):
    """Five rows in one bucket, each in a log file of its own."""
    table = timed.db.create_table("web.events", LOG)
    for n in range(5):
        table.put({"n": n})
    return table


def numbers(batches) -> list[int]:
    return [n for batch in batches for n in batch["n"].to_pylist()]


def handle_each(changelog, handle) -> None:
    with changelog as changes:
        for batch in changes:
            handle(batch)


def committed(db, name="job"):
    return next(follower.offsets for follower in db.followers() if follower.name == name)


def test_a_follower_goes_on_where_it_was(timed, events):
    assert numbers(events.changelog(follower="job")) == [0, 1, 2, 3, 4]
    events.put({"n": 5})

    assert numbers(events.changelog(follower="job")) == [5]
    assert numbers(events.changelog(follower="job")) == []
    assert numbers(events.changelog(follower="other")) == [0, 1, 2, 3, 4, 5]


def test_a_follower_goes_on_after_the_end_of_the_process(timed, events):
    assert numbers(events.changelog(follower="job")) == [0, 1, 2, 3, 4]

    timed.reopen()
    events = timed.db.table("web.events")
    events.put({"n": 5})

    assert numbers(events.changelog(follower="job")) == [5]


def test_a_table_with_a_key_has_followers_too(db, pages):
    pages.put([{"page": f"/{n}", "pv": n, "title": None} for n in range(20)])
    first = sum(batch.num_rows for batch in pages.changelog(follower="job"))
    pages.put({"page": "/0", "pv": 9, "title": None})

    rows = [row for batch in pages.changelog(follower="job") for row in batch.to_pylist()]

    assert first == 20
    assert [row["_change_type"] for row in rows] == ["-U", "+U"]


def test_the_first_use_may_start_anywhere_and_later_ones_may_not(events):
    assert numbers(events.changelog(follower="late", start="latest")) == []
    assert numbers(events.changelog(follower="job", start={"0": 3}, stop={"0": 4})) == [3]

    with pytest.raises(InvalidArgument, match=r"leave start out, or drop it first with db.drop_follower\('web.events'"):
        events.changelog(follower="job", start={"0": 0})
    assert numbers(events.changelog(follower="job", start={"0": 4})) == [4]  # it says where the follower is anyway
    with pytest.raises(OffsetOutOfRange, match="0 to 5"):
        events.changelog(follower="new", start={"0": 6})


def test_a_batch_is_handled_when_the_next_one_is_asked_for(timed):
    table = timed.db.create_table("t", LOG, buckets=2, bucket_key=["n"])
    table.put([{"n": n} for n in range(10)])  # one page of each bucket
    changelog = table.changelog(follower="job", commit_interval=0)
    batches = iter(changelog)

    first = next(batches)
    before = committed(timed.db)
    next(batches)
    after = committed(timed.db)

    bucket = first["_bucket"][0].as_py()
    assert before == {"0": 0, "1": 0}
    assert after == {"0": 0, "1": 0, bucket: first.num_rows}


def test_commits_come_by_the_clock(timed):
    table = timed.db.create_table("t", LOG, buckets=3, bucket_key=["n"])
    table.put([{"n": n} for n in range(30)])
    batches = iter(table.changelog(follower="job"))

    next(batches), next(batches)
    assert sum(committed(timed.db).values()) == 0
    timed.clock.advance(seconds=5)
    next(batches)

    assert sum(offset > 0 for offset in committed(timed.db).values()) == 2


def test_a_block_that_ends_well_has_handled_the_batch_in_hand(timed, events):
    with events.changelog(follower="job") as changes:
        next(iter(changes))

    assert committed(timed.db) == {"0": 5}


def test_a_block_that_fails_gets_the_batch_in_hand_again_and_none_before_it(timed):
    table = timed.db.create_table("t", LOG, buckets=2, bucket_key=["n"])
    table.put([{"n": n} for n in range(10)])
    seen = []

    def fail_at_the_second(batch) -> None:
        seen.append(batch)
        if len(seen) == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle_each(table.changelog(follower="job"), fail_at_the_second)

    assert numbers(table.changelog(follower="job")) == numbers(seen[1:])


def test_commit_covers_everything_handed_out(timed, events):
    changelog = events.changelog(follower="job", commit_interval=None)

    def commit_and_fail(_) -> None:
        changelog.commit()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle_each(changelog, commit_and_fail)

    assert committed(timed.db) == {"0": 5}


def test_without_an_interval_only_commit_commits(timed, events):
    with events.changelog(follower="job", commit_interval=None) as changes:
        assert numbers(changes) == [0, 1, 2, 3, 4]
    assert committed(timed.db) == {"0": 0}

    with events.changelog(follower="job", commit_interval=datetime.timedelta(hours=1)) as changes:
        assert numbers(changes) == [0, 1, 2, 3, 4]
    assert committed(timed.db) == {"0": 5}


def test_close_from_another_thread_does_not_commit_the_batch_in_hand(timed, events):
    changelog = events.changelog(follower="job", follow=True)
    batches = iter(changelog)
    next(batches)

    closer = threading.Thread(target=changelog.close)
    closer.start()
    closer.join(30)
    assert committed(timed.db) == {"0": 0}

    assert list(batches) == []  # the reader asks for more, so it is done with it
    assert committed(timed.db) == {"0": 5}


def test_a_follower_that_waits_is_handed_what_comes(timed, events):
    got: list[int] = []
    enough = threading.Event()

    def follow() -> None:
        with events.changelog(follower="job", follow=True) as changes:
            opened.append(changes)
            for batch in changes:
                got.extend(batch["n"].to_pylist())
                if len(got) >= 8:
                    enough.set()

    opened: list = []
    reader = threading.Thread(target=follow)
    reader.start()
    for n in range(5, 8):
        events.put({"n": n})
    assert enough.wait(30)
    opened[0].close()
    reader.join(30)

    assert got == list(range(8))
    assert committed(timed.db) == {"0": 8}


def test_a_newer_reader_takes_a_follower_over(timed, events):
    older = events.changelog(follower="job")
    batches = iter(older)
    next(batches)
    newer = timed.connect()
    second = newer.table("web.events").changelog(follower="job")

    with pytest.raises(FollowerTaken, match="stop one of"):
        older.commit()
    with pytest.raises(FollowerTaken):
        list(batches)
    assert numbers(second) == [0, 1, 2, 3, 4]
    assert committed(timed.db) == {"0": 5}
    with pytest.raises(FollowerTaken):
        older.close()
    assert committed(timed.db) == {"0": 5}
    newer.close()


def test_a_reader_that_was_replaced_stops_at_its_next_commit_also_when_nothing_comes(timed, events):
    older = events.changelog(follower="job", follow=True, commit_interval=0)
    batches = iter(older)
    next(batches)
    events.changelog(follower="job")

    with pytest.raises(FollowerTaken):
        next(batches)


def test_offsets_never_go_back(timed, events):
    service, table = timed.db._link.service, events.info.id
    session = service.open_follower(table, "job", 7, None)

    service.commit_follower(table, "job", session.epoch, {"0": 4})
    service.commit_follower(table, "job", session.epoch, {"0": 2})  # one that was long on its way

    assert committed(timed.db) == {"0": 4}


def test_a_retried_open_is_answered_alike(timed, events):
    service, table = timed.db._link.service, events.info.id

    first = service.open_follower(table, "job", 7, {"0": 2})
    again = service.open_follower(table, "job", 7, {"0": 2})

    assert (first, first.offsets) == (again, {"0": 2})


def test_what_is_not_written_or_not_there_cannot_be_committed(timed, events):
    service, table = timed.db._link.service, events.info.id
    session = service.open_follower(table, "job", 7, None)

    with pytest.raises(OffsetOutOfRange):
        service.commit_follower(table, "job", session.epoch, {"0": 6})
    with pytest.raises(InvalidArgument, match="no bucket"):
        service.commit_follower(table, "job", session.epoch, {"1": 0})


def test_a_reader_of_a_follower_that_was_made_anew_is_still_fenced(timed, events):
    older = events.changelog(follower="job")
    timed.db.drop_follower("web.events", "job")
    with pytest.raises(FollowerNotFound, match="was dropped"):
        older.commit()

    events.changelog(follower="job")

    with pytest.raises(FollowerTaken):
        older.commit()


def test_followers_are_listed_with_lag_and_pinned_bytes(timed, events):
    numbers(events.changelog(follower="a", stop={"0": 2}))
    numbers(events.changelog(follower="b"))

    behind, done = timed.db.followers()

    assert (behind.table, behind.name, behind.offsets, behind.lag) == ("web.events", "a", {"0": 2}, 3)
    assert behind.state == "live"
    assert behind.pinned_bytes > 0
    assert (done.lag, done.pinned_bytes) == (0, 0)
    assert behind.last_use == datetime.datetime.fromtimestamp(timed.clock.now_ms() / 1000, datetime.UTC)
    assert behind.expires - behind.last_use == datetime.timedelta(days=DEFAULT_TTL_DAYS)


def test_many_followers_of_many_buckets_are_all_listed(timed):
    table = timed.db.create_table("t", LOG, buckets=64, bucket_key=["n"])
    service = timed.db._link.service
    for n in range(FOLLOWERS_MAX):
        service.open_follower(table.info.id, f"f{n:03}", n, None)

    listed = timed.db.followers()

    assert [follower.name for follower in listed] == [f"f{n:03}" for n in range(FOLLOWERS_MAX)]
    with pytest.raises(TooManyFollowers):
        table.changelog(follower="one-more")


def test_an_idle_follower_expires_and_revives_while_nothing_is_lost(timed, events):
    numbers(events.changelog(follower="job", stop={"0": 2}))
    timed.clock.advance(seconds=DEFAULT_TTL_DAYS * DAY)
    (expired,) = timed.db.followers()
    timed.engine.tick()  # the table keeps everything, so nothing goes

    assert (expired.state, expired.pinned_bytes) == ("expired", 0)
    assert numbers(events.changelog(follower="job")) == [2, 3, 4]
    assert timed.db.followers()[0].state == "live"


def test_a_reader_that_waits_for_changes_does_not_expire(timed, events):
    batches = iter(events.changelog(follower="job", follow=True, commit_interval=None))
    next(batches)
    for day in range(10):
        timed.clock.advance(seconds=DAY)
        events.put({"n": day})
        next(batches)

    assert timed.db.followers()[0].state == "live"
    assert committed(timed.db) == {"0": 0}


def test_dropping_a_follower_forgets_it(timed, events):
    numbers(events.changelog(follower="job"))

    timed.db.drop_follower("web.events", "job")

    assert timed.db.followers() == []
    assert numbers(events.changelog(follower="job", start={"0": 3})) == [3, 4]
    with pytest.raises(FollowerNotFound, match="its followers are: job"):
        timed.db.drop_follower("web.events", "nobody")
    with pytest.raises(TableNotFound):
        timed.db.drop_follower("web.nothing", "job")


def test_dropping_a_table_drops_its_followers(timed, events):
    reader = events.changelog(follower="job")
    timed.db.drop_table("web.events")

    assert timed.db.followers() == []
    with pytest.raises(TableNotFound):
        reader.commit()
    again = timed.db.create_table("web.events", LOG)
    again.put({"n": 7})
    assert numbers(again.changelog(follower="job")) == [7]
    timed.reopen()
    assert [follower.name for follower in timed.db.followers()] == ["job"]


def test_truncating_a_log_table_loses_its_followers_what_they_had_not_seen(timed, events):
    numbers(events.changelog(follower="behind", stop={"0": 2}))
    numbers(events.changelog(follower="done"))
    reading = iter(events.changelog(follower="reading", follow=True))
    next(reading)
    events.truncate()
    events.put({"n": 5})

    assert numbers(events.changelog(follower="done")) == [5]
    with pytest.raises(HolderLost, match=r"drop it with db.drop_follower\('web.events', 'behind'\)"):
        events.changelog(follower="behind")
    assert {follower.name: follower.state for follower in timed.db.followers()}["behind"] == "lost"
    assert numbers([next(reading)]) == [5]  # it had seen all that went


def test_wrong_arguments_are_refused_with_what_is_right(timed, events):
    with pytest.raises(InvalidName, match="follower name"):
        events.changelog(follower="no such name")
    with pytest.raises(InvalidArgument, match="leave buckets and where out"):
        events.changelog(follower="job", buckets=["0"])
    for wrong in ("soon", -1, True, float("nan")):
        with pytest.raises(InvalidArgument, match="commit_interval is a duration"):
            events.changelog(follower="job", commit_interval=wrong)
    with pytest.raises(InvalidArgument, match="goes with follower"):
        events.changelog(commit_interval="1s")
    with pytest.raises(InvalidArgument, match="only a follower commits"):
        events.changelog().commit()
    assert timed.db.followers() == []


def test_closing_after_the_database_is_no_error(bench):
    timed = bench()
    table = timed.db.create_table("t", LOG)
    table.put({"n": 1})
    changelog = table.changelog(follower="job")
    batches = iter(changelog)
    next(batches)
    timed.db.close()

    changelog.close()

    with pytest.raises(Closed):
        table.changelog(follower="job")
