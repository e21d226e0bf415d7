"""Whoever reads a table while its partitions come and go: told in order, of which and how much, and never misled."""

import threading

import pytest
from tests.spec.cut import EVENTS, SCHEMA

import kolk
from kolk.errors import InvalidArgument, KolkError, OffsetOutOfRange, PartitionDropped, PartitionNotFound
from kolk.runtime.rng import Rng


@pytest.fixture
def table(db):
    return db.create_table("t", SCHEMA, buckets=2, partition_by=["day"])


@pytest.fixture
def events(db):
    return db.create_table("e", EVENTS, buckets=2, bucket_key=["n"], partition_by=["day"])


def rows(day, count, value=0):
    return [{"day": day, "key": key, "value": value} for key in range(count)]


def told(events):
    return [(event.kind.value, event.partition, event.unread) for event in events]


class Replica:
    """A copy of a table, kept by what a reader is given and told."""

    def __init__(self, rows=()):
        self.rows = {(row["day"], row["key"]): row["value"] for row in rows}
        self.events = []

    def on_partition(self, event):
        self.events.append(event)
        if event.kind == "dropped":
            self.rows = {key: value for key, value in self.rows.items() if key[0] != event.values["day"]}

    def apply(self, batch):
        for row in batch.to_pylist():
            if row["_change_type"] in ("+I", "+U"):
                self.rows[row["day"], row["key"]] = row["value"]
            else:
                self.rows.pop((row["day"], row["key"]), None)

    def read(self, table, **how):
        """Go on up to the present end; where to go on then."""
        with table.changelog(on_partition=self.on_partition, **how) as changes:
            for batch in changes:
                self.apply(batch)
            return changes.offsets


def scanned(table):
    with table.scan() as scan:
        return {(row["day"], row["key"]): row["value"] for row in scan.to_arrow().to_pylist()}


# --- scans


@pytest.fixture
def wide(bench):
    """A table whose first partition is so large that no network takes in the others before it is read."""
    schema = kolk.Schema(
        [kolk.Column("day", "string"), kolk.Column("key", "int"), kolk.Column("text", "string")],
        primary_key=["day", "key"],
    )
    table = bench(scan_page_rows=1, log_segment_bytes=2**26).db.create_table("t", schema, partition_by=["day"])
    table.put([{"day": "a", "key": key, "text": "x" * 2**20} for key in range(16)])
    table.put([{"day": day, "key": key, "text": "y"} for day in "bcd" for key in range(3)])
    return table


def test_a_scan_of_a_dropped_partition_says_so_once_and_goes_on_with_the_others(wide):
    with wide.scan() as scan:
        wide.drop_partition(day="c")

        with pytest.raises(PartitionDropped) as caught:
            list(scan)
        rest = list(scan)

    assert (caught.value.partition, caught.value.unread) == ("day=c", None)
    assert {row["day"] for batch in rest for row in batch.to_pylist()} == {"d"}


def test_a_scan_into_one_table_loses_no_row_of_the_others_when_it_is_asked_again(wide):
    with wide.scan(columns=["key", "text", "day"]) as scan:
        wide.drop_partition(day="c")

        with pytest.raises(PartitionDropped):
            scan.to_arrow()

        assert scan.to_arrow().num_rows == 16 + 3 + 3


def test_a_scan_that_asked_to_be_told_of_drops_meets_no_exception(wide):
    found = []
    with wide.scan(on_partition=found.append) as scan:
        wide.drop_partition(day="b")
        wide.drop_partition(day="d")
        wide.put([{"day": "b", "key": 0, "text": "new"}])

        assert set(scan.to_arrow()["day"].to_pylist()) == {"a", "c"}

    assert told(found) == [("dropped", "day=b", None), ("dropped", "day=d", None)]


def test_a_scan_that_has_read_a_partition_is_not_told_of_its_end(wide):
    with wide.scan() as scan:
        batches = iter(scan)
        first = sum(next(batches).num_rows for _ in range(17))
        wide.drop_partition(day="a")

        assert first + sum(batch.num_rows for batch in batches) == 16 + 9


# --- changelogs


def test_a_changelog_is_told_of_partitions_in_order_with_their_changes(table):
    seen = []
    with table.changelog(follow=True, on_partition=lambda event: seen.append(event.kind.value)) as changes:
        batches = iter(changes)
        table.put(rows("a", 1))
        seen.append(next(batches)["day"].to_pylist()[0])
        table.drop_partition(day="a")
        table.put(rows("b", 1))
        seen.append(next(batches)["day"].to_pylist()[0])

    assert seen == ["created", "a", "dropped", "created", "b"]


@pytest.mark.parametrize("is_log", [False, True], ids=["key", "log"])
def test_a_drop_says_exactly_how_many_changes_were_not_read(db, is_log):
    table = db.create_table("t", EVENTS if is_log else SCHEMA, buckets=2, partition_by=["day"])

    def put(day, numbers):
        table.put([dict(zip(table.schema.names, (day, number, 0), strict=False)) for number in numbers])

    put("a", range(5))
    found, read = [], 0
    with table.changelog(follow=True, on_partition=found.append) as changes:
        batches = iter(changes)
        while read < 5:
            read += next(batches).num_rows
        put("a", range(3, 30))
        if not is_log:
            table.delete([{"day": "a", "key": key} for key in range(30)])
        total = sum(offsets["end"] for offsets in table.describe()["offsets"].values())
        table.drop_partition(day="a")
        put("b", [1])
        for batch in batches:
            if batch["day"][0].as_py() == "b":
                break
            read += batch.num_rows

    # Over a network some had been sent, and are read, before the drop; here none was.
    assert told(found)[0] == ("dropped", "day=a", total - read)


def test_changes_that_a_reader_does_not_get_are_an_exception_for_one_who_did_not_ask(wide):
    with wide.changelog() as changes:
        wide.drop_partition(day="c")

        with pytest.raises(PartitionDropped) as caught:
            list(changes)
        rest = list(changes)

    assert (caught.value.partition, caught.value.unread) == ("day=c", 3)
    assert "3 changes of it were not read" in str(caught.value)
    assert sum(batch.num_rows for batch in rest) > 0


def test_a_follow_goes_on_with_the_others_after_a_drop_and_hears_of_it_once(table):
    table.put(rows("a", 4) + rows("b", 4))
    with table.changelog(follow=True) as changes:
        table.drop_partition(day="a")
        with pytest.raises(PartitionDropped):
            next(iter(changes))
        table.put(rows("c", 4))

        days = set()
        for batch in changes:
            days |= set(batch["day"].to_pylist())
            if days == {"b", "c"}:
                break

    assert "day=a/0" not in changes.offsets


def test_a_partition_that_was_read_to_its_end_goes_without_an_exception(table):
    table.put(rows("a", 4))
    with table.changelog(follow=True) as changes:
        batches = iter(changes)
        read = 0
        while read < 4:
            read += next(batches).num_rows
        table.drop_partition(day="a")
        table.put(rows("b", 1))

        assert next(batches)["day"].to_pylist() == ["b"]


def test_a_changelog_that_ends_at_the_present_ends_though_a_partition_goes_meanwhile(table):
    table.put(rows("a", 4) + rows("b", 4))
    found = []
    changes = table.changelog(on_partition=found.append)
    table.drop_partition(day="b")
    table.put(rows("c", 1))

    assert sum(batch.num_rows for batch in changes) == 4
    assert told(found) == [("dropped", "day=b", 4)]


def test_what_is_past_the_end_of_a_reading_is_told_in_its_order_if_any_of_it_is(table):
    table.put(rows("a", 4))
    found = []
    changes = table.changelog(on_partition=found.append)
    table.put(rows("b", 2))
    table.drop_partition(day="a")
    assert list(changes) == []

    rest = Replica()
    rest.read(table, start=changes.offsets)

    assert told(found) == [("created", "day=b", 0), ("dropped", "day=a", 4)]
    assert told(rest.events) == []
    assert rest.rows == scanned(table)


def test_chosen_buckets_are_read_without_the_record_of_partitions(table):
    table.put(rows("a", 20) + rows("b", 20))
    found = []
    changes = table.changelog(buckets=["day=a/1"], follow=True, on_partition=found.append)
    batches = iter(changes)
    count = next(batches).num_rows
    table.put(rows("c", 2))
    table.drop_partition(day="b")
    table.drop_partition(day="a")

    assert list(batches) == []  # there is nothing left to follow
    assert told(found) == [("dropped", "day=a", 0)]
    assert 0 < count < 20
    assert changes.offsets == {}


@pytest.mark.parametrize("buckets", [["partitions"], ["day=b/0"], ["day=a/2"], ["0"], ["day=a"]])
def test_a_bucket_that_is_not_there_cannot_be_chosen(table, buckets):
    table.put(rows("a", 1))

    with pytest.raises(InvalidArgument, match="there is no bucket"):
        table.changelog(buckets=buckets)


def test_an_event_that_its_reader_could_not_take_comes_again(table):
    found = []

    def stumbling(event):
        found.append(event)
        if len(found) == 1:
            raise RuntimeError("not now")

    changes = table.changelog(follow=True, on_partition=stumbling)
    table.put(rows("a", 1))
    with pytest.raises(RuntimeError):
        next(iter(changes))

    assert next(iter(changes)).num_rows == 1
    assert told(found) == [("created", "day=a", 0)] * 2
    changes.close()


def test_a_follower_whose_event_failed_commits_and_goes_on(table):
    found = []

    def stumbling(event):
        found.append(event)
        if len(found) == 1:
            raise RuntimeError("not now")

    with table.changelog(follower="f", follow=True, on_partition=stumbling) as changes:
        table.put(rows("a", 1))
        with pytest.raises(RuntimeError):
            next(iter(changes))
        changes.commit()
        batch = next(iter(changes))
        changes.commit()

    assert batch.num_rows == 1
    assert told(found) == [("created", "day=a", 0)] * 2


# --- kept offsets


def test_a_scan_and_the_changelog_from_its_offsets_on_make_the_table(table):
    table.put(rows("a", 10) + rows("b", 10))
    with table.scan() as scan:
        replica = Replica(scan.to_arrow().to_pylist())
    table.put(rows("a", 5, 1) + rows("c", 5))
    table.drop_partition(day="b")
    table.delete([{"day": "a", "key": 9}])
    table.drop_partition(day="c")
    table.put(rows("c", 2, 9) + rows("d", 1))

    replica.read(table, start=scan.offsets)

    assert replica.rows == scanned(table)
    # Of the first c, which came and went, no row is given: what was not read of it is said.
    assert told(replica.events) == [
        ("created", "day=c", 0),
        ("dropped", "day=b", 0),
        ("dropped", "day=c", 5),
        ("created", "day=c", 0),
        ("created", "day=d", 0),
    ]


def test_a_partition_made_anew_is_not_taken_for_the_one_whose_offsets_were_kept(table):
    table.put(rows("a", 4))
    kept = Replica()
    offsets = kept.read(table)
    for count in (2, 4, 8):
        table.drop_partition(day="a")
        table.put(rows("a", count, count))

        replica = Replica([{"day": day, "key": key, "value": value} for (day, key), value in kept.rows.items()])
        replica.read(table, start=offsets)

        assert replica.rows == scanned(table)
        assert told(replica.events)[-1] == ("created", "day=a", 0)


def test_chosen_buckets_with_kept_offsets_are_not_taken_for_those_of_a_former_partition(table):
    table.put(rows("a", 40))
    with table.scan() as scan:
        offsets = scan.offsets
    table.drop_partition(day="a")
    table.put(rows("a", 60, 1))

    both = ["day=a/0", "day=a/1"]
    read = sum(batch.num_rows for batch in table.changelog(start=offsets, buckets=both))

    assert read == 60


def test_a_reading_from_one_scan_to_another_is_what_came_between(table):
    table.put(rows("a", 10) + rows("b", 10))
    with table.scan() as first:
        replica = Replica(first.to_arrow().to_pylist())
    table.put(rows("a", 5, 1) + rows("c", 5))
    table.drop_partition(day="b")
    with table.scan() as second:
        expected = {(row["day"], row["key"]): row["value"] for row in second.to_arrow().to_pylist()}
    table.put(rows("a", 8, 2) + rows("d", 5))

    offsets = replica.read(table, start=first.offsets, stop=second.offsets)

    assert replica.rows == expected
    assert offsets == second.offsets
    replica.read(table, start=offsets)
    assert replica.rows == scanned(table)


def test_a_reading_up_to_a_scan_ends_though_what_was_scanned_is_gone(table):
    table.put(rows("a", 10) + rows("b", 10))
    with table.scan() as scan:
        pass
    table.drop_partition(day="a")
    table.put(rows("a", 30, 1))
    replica = Replica()

    replica.read(table, start={"partitions": 1}, stop=scan.offsets)

    assert told(replica.events)[-1] == ("dropped", "day=a", 10)
    assert set(replica.rows) == {("b", key) for key in range(10)}


def test_a_reading_that_begins_past_its_stop_ends(table):
    table.put(rows("a", 10) + rows("b", 10))
    with table.scan() as former:
        pass
    table.drop_partition(day="a")
    table.put(rows("c", 3))
    with table.scan() as later:
        pass
    list(table.changelog(follower="f", start=later.offsets))

    assert list(table.changelog(start=later.offsets, stop=former.offsets)) == []
    assert list(table.changelog(follower="f", stop=former.offsets)) == []


class Hasty:
    """A service under which something happens right after the first look at the bounds."""

    def __init__(self, service, happens):
        self._service = service
        self._happens = [happens]

    def bounds(self, table):
        found = self._service.bounds(table)
        while self._happens:
            self._happens.pop()()
        return found

    def __getattr__(self, name):
        return getattr(self._service, name)


@pytest.mark.parametrize("follower", [None, "f"])
def test_a_reading_ends_though_partitions_go_and_come_while_it_is_opened(db, table, follower):
    table.put(rows("a", 4) + rows("b", 4))

    def happens():
        table.drop_partition(day="a")
        table.put(rows("a", 2, 1) + rows("c", 3))

    hasty = kolk.Database(Hasty(db._service, happens), lambda: None, Rng())
    replica = Replica()

    replica.read(hasty.table("t"), follower=follower)
    replica.read(table, follower="f" if follower else None, start=None if follower else {"partitions": 3})

    assert replica.rows == scanned(table)


@pytest.mark.parametrize("position", [-5, 0, 10**6, 2**62])
def test_a_place_that_the_record_of_partitions_does_not_have_is_refused(table, position):
    table.put(rows("a", 1))

    with pytest.raises(OffsetOutOfRange, match="has events 1 to 2"):
        list(table.changelog(start={"partitions": position}))
    with pytest.raises(KolkError):
        table.changelog(start={"partitions": position}, follower="f")


def test_offsets_of_a_bucket_that_was_never_there_are_refused(table):
    table.put(rows("a", 1))

    with pytest.raises(PartitionNotFound, match="day=z/0"):
        list(table.changelog(start={"partitions": 1, "day=z/0": 3}))
    with pytest.raises(InvalidArgument, match="day=z/0"):
        table.changelog(start={"day=z/0": 3})


def test_the_earliest_and_the_latest_start_are_those_of_the_present_partitions(table):
    table.put(rows("a", 3) + rows("b", 3))
    table.drop_partition(day="a")
    found = []

    earliest = list(table.changelog("earliest", on_partition=found.append))
    latest = list(table.changelog("latest", on_partition=found.append))

    assert sum(batch.num_rows for batch in earliest) == 3
    assert (latest, found) == ([], [])


def test_a_log_table_with_partitions_is_read_as_one(events):
    events.put([{"day": day, "n": n} for day in "ab" for n in range(10)])
    events.drop_partition(day="a")
    events.put([{"day": "a", "n": 100}])

    read = [(row["day"], row["n"]) for batch in events.changelog() for row in batch.to_pylist()]

    assert sorted(read) == [("a", 100), *(("b", n) for n in range(10))]


def test_a_follow_that_waits_is_woken_by_a_drop_and_by_its_close(table):
    table.put(rows("a", 1))
    dropped, changes = threading.Event(), None

    def on_partition(event):
        if event.kind == "dropped":
            dropped.set()

    changes = table.changelog(follow=True, on_partition=on_partition)
    reader = threading.Thread(target=lambda: [None for _ in changes])
    reader.start()
    table.drop_partition(day="a")

    assert dropped.wait(20)
    changes.close()
    reader.join(20)
    assert not reader.is_alive()
