"""The changelog: every change, in order, from anywhere, and on into the future."""

import datetime
import threading

import numpy as np
import pytest

import kolk
from kolk.errors import Closed, InvalidArgument, OffsetOutOfRange


@pytest.fixture
def counters(db):
    return db.create_table("counters", kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int")], "id"))


def changes(changelog) -> list[tuple]:
    return [(row["_change_type"], row["id"], row["n"]) for batch in changelog for row in batch.to_pylist()]


def test_a_changelog_shows_inserts_updates_and_deletes_with_their_images(counters):
    counters.put([{"id": 1, "n": 1}, {"id": 2, "n": 1}])
    counters.put({"id": 1, "n": 2})
    counters.delete([2, 3])

    assert changes(counters.changelog()) == [
        ("+I", 1, 1),
        ("+I", 2, 1),
        ("-U", 1, 1),
        ("+U", 1, 2),
        ("-D", 2, 1),
    ]


def test_the_change_columns_come_first_and_are_dense_offsets_and_times(counters):
    counters.put([{"id": n, "n": 0} for n in range(3)])
    counters.put([{"id": n, "n": 1} for n in range(3)])

    batches = list(counters.changelog())

    assert batches[0].schema.names[:4] == ["_change_type", "_log_offset", "_commit_timestamp", "_bucket"]
    offsets = [offset for batch in batches for offset in batch.column("_log_offset").to_pylist()]
    assert offsets == list(range(9))
    times = [time for batch in batches for time in batch.column("_commit_timestamp").to_pylist()]
    assert times == sorted(times)
    assert {name for batch in batches for name in batch.column("_bucket").to_pylist()} == {"0"}


def test_a_put_that_changes_nothing_is_acknowledged_and_invisible(counters):
    first = counters.put({"id": 1, "n": 1})
    again = counters.put({"id": 1, "n": 1})

    assert again.offsets == first.offsets == {"0": 1}
    assert len(changes(counters.changelog())) == 1


def test_the_wal_image_has_no_rows_before(db):
    schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int"), kolk.Column("x", "int")], "id")
    table = db.create_table("wal", schema, options={"table.changelog.image": "WAL"})

    table.put({"id": 1, "n": 1, "x": 0})
    table.put({"id": 1, "n": 2, "x": 0})
    table.put({"id": 1, "n": 3}, columns=["n"])
    table.put({"id": 2, "n": 3}, columns=["n"])
    table.delete([1])

    assert changes(table.changelog()) == [("+U", 1, 1), ("+U", 1, 2), ("+U", 1, 3), ("+I", 2, 3), ("-D", 1, 3)]


def test_a_changelog_starts_and_stops_where_it_is_told(counters):
    for n in range(5):
        counters.put([{"id": 10 * n + i, "n": n} for i in range(4)])

    assert [row[1] for row in changes(counters.changelog(start={"0": 6}, stop={"0": 9}))] == [12, 13, 20]
    assert changes(counters.changelog(start="latest")) == []
    assert len(changes(counters.changelog(stop={"0": 99}))) == 20  # not a follower, so it does not wait for more
    assert len(changes(counters.changelog(start={"0": np.int64(18)}))) == 2
    assert len(changes(counters.changelog(start="earliest"))) == 20


def test_offsets_kept_between_batches_resume_without_gap_or_repeat(pages):
    for n in range(30):
        pages.put([{"page": f"/{i}", "pv": n, "title": None} for i in range(n % 7 + 1)])
    whole = sorted((row["_bucket"], row["_log_offset"]) for batch in pages.changelog() for row in batch.to_pylist())

    seen, offsets = [], None
    while True:
        changelog = pages.changelog(start=offsets)
        batch = next(iter(changelog), None)
        if batch is None:
            break
        seen += [(row["_bucket"], row["_log_offset"]) for row in batch.to_pylist()]
        offsets = dict(changelog.offsets)

    assert sorted(seen) == whole
    assert len(set(seen)) == len(seen)


def test_a_bucket_left_out_of_the_start_begins_at_its_log_start(pages):
    pages.put([{"page": f"/{i}", "pv": 1, "title": None} for i in range(40)])
    ends = {bucket: end for bucket, (_, end) in pages._service.bounds(pages.info.id).items()}

    rest = {row["_bucket"] for batch in pages.changelog(start={"0": ends["0"]}) for row in batch.to_pylist()}
    only = {row["_bucket"] for batch in pages.changelog(buckets=["2"]) for row in batch.to_pylist()}

    assert rest == {"1", "2", "3"}
    assert only == {"2"}


def test_a_changelog_starts_at_a_time(counters):
    counters.put({"id": 1, "n": 1})
    stamp = next(iter(counters.changelog())).column("_commit_timestamp")[0].as_py()

    assert len(changes(counters.changelog(start=stamp))) == 1
    assert changes(counters.changelog(start=stamp + datetime.timedelta(days=1))) == []
    with pytest.raises(InvalidArgument, match="time zone"):
        counters.changelog(start=datetime.datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused


def test_a_follower_gets_what_is_written_while_it_waits(counters):
    got: list[tuple] = []
    enough = threading.Event()

    def follow() -> None:
        for batch in changelog:
            got.extend(changes([batch]))
            if len(got) >= 10:
                enough.set()

    changelog = counters.changelog(follow=True)
    follower = threading.Thread(target=follow)
    follower.start()
    for n in range(10):
        counters.put({"id": n, "n": n})
    assert enough.wait(30)
    changelog.close()
    follower.join(30)

    assert not follower.is_alive()
    assert got == [("+I", n, n) for n in range(10)]


def test_a_follower_is_told_when_the_database_closes(folder, config):
    db = kolk.connect(folder, config=config)
    table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
    table.put({"id": 1})
    outcome: list[Exception] = []
    follows = threading.Event()

    def follow() -> None:
        try:
            for _ in table.changelog(follow=True):
                follows.set()
        except Closed as error:
            outcome.append(error)

    follower = threading.Thread(target=follow)
    follower.start()
    assert follows.wait(30)
    db.close()
    follower.join(30)

    assert len(outcome) == 1


def test_offsets_that_do_not_exist_are_refused(counters):
    counters.put({"id": 1, "n": 1})

    with pytest.raises(OffsetOutOfRange, match="not written yet"):
        counters.changelog(start={"0": 2})
    with pytest.raises(OffsetOutOfRange, match="starts at offset 0"):
        counters.changelog(start={"0": -1})
    for wrong in ({"7": 0}, "sometime", {"0": "1"}, 5):
        with pytest.raises(InvalidArgument):
            counters.changelog(start=wrong)
    with pytest.raises(InvalidArgument, match="whole numbers"):
        counters.changelog(stop={"0": 1.5})
    with pytest.raises(InvalidArgument, match="no bucket"):
        counters.changelog(buckets=["9"])
    with pytest.raises(InvalidArgument, match="stop names"):
        counters.changelog(stop={"9": 1})


def test_truncating_shows_a_delete_for_every_row_and_survives_a_reopen(folder, config):
    with kolk.connect(folder, config=config) as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int")], "id"))
        table.put([{"id": n, "n": n} for n in range(40_000)])
        table.put({"id": 0, "n": -1})

        ends = table.truncate()

        assert ends == {"0": 40_002 + 40_000}
        assert table.scan().to_arrow().num_rows == 0
        tail = changes(table.changelog(start={"0": 40_002}))
        assert tail == [("-D", n, -1 if n == 0 else n) for n in range(40_000)]
        table.put({"id": 5, "n": 5})
    with kolk.connect(folder, config=config) as db:
        assert db.table("t").scan().to_arrow().to_pylist() == [{"id": 5, "n": 5}]


def test_truncating_a_log_table_forgets_its_log_and_keeps_counting(folder, config):
    with kolk.connect(folder, config=config) as db:
        events = db.create_table("events", kolk.Schema([kolk.Column("n", "int")]))
        events.put([{"n": 1}, {"n": 2}])
        assert events.truncate() == {"0": 2}
        events.put({"n": 3})
    with kolk.connect(folder, config=config) as db:
        events = db.table("events")
        assert [(row["_log_offset"], row["n"]) for b in events.changelog() for row in b.to_pylist()] == [(2, 3)]
        with pytest.raises(OffsetOutOfRange, match="trimmed"):
            events.changelog(start={"0": 0})


def test_a_closed_changelog_says_so_instead_of_looking_finished(counters):
    counters.put({"id": 1, "n": 1})
    changelog = counters.changelog()
    changelog.close()

    with pytest.raises(Closed, match="changelog is closed"):
        list(changelog)
    for wrong in ("12", 5):
        with pytest.raises(InvalidArgument, match="buckets is a list"):
            counters.changelog(buckets=wrong)
    with pytest.raises(InvalidArgument, match="stop is offsets"):
        counters.changelog(stop=5)
    with pytest.raises(InvalidArgument, match="start is"):
        counters.changelog(start=np.array([1, 2]))
