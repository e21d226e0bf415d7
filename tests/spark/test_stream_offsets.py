"""The arithmetic of micro-batches: however a table and its log are divided, every row and every change comes once."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidArgument, UnknownFormat
from kolk.model.partition import PARTITIONS, PartitionEvent, PartitionEventKind
from kolk.spark.offsets import (
    LogSlice,
    Position,
    SnapshotSlice,
    Unread,
    after_changes,
    after_event,
    after_rows,
    behind,
    grouped,
    numbers,
    scanned,
    shares,
    slices,
)

SIZES = st.dictionaries(st.integers(0, 12).map(str), st.integers(0, 50), min_size=1, max_size=6)


def position(rows, log, **more):
    unread = {name: Unread(snapshot=1, rows=count) for name, count in rows.items() if count}
    return Position(table=7, follower="f", log=log, lease="lease" if rows else "", unread=unread, **more)


@given(sizes=SIZES, limit=st.one_of(st.none(), st.integers(1, 200)))
def test_a_limit_is_used_up_and_shared_evenly(sizes, limit):
    taken = shares(sizes, limit)

    whole = sum(sizes.values())
    assert sum(taken.values()) == (whole if limit is None else min(limit, whole))
    assert all(0 <= taken[name] <= sizes[name] for name in sizes)
    most = max(taken.values())
    assert all(taken[name] in (sizes[name], most, most - 1) for name in sizes)


@given(data=st.data(), rows=SIZES, lanes=st.integers(1, 4))
def test_any_division_reads_every_row_and_every_change_once(data, rows, lanes):
    """Limits change as they like, changes come in between, and the query is restarted from its text after any batch."""
    starts = {name: data.draw(st.integers(0, 30)) for name in rows}
    ends = dict(starts)
    at = first = position(rows, starts)
    seen_rows, seen_changes = [], []
    for turn in range(1_000):
        for name in rows:
            ends[name] += data.draw(st.integers(0, 9)) if turn < 3 else 0
        limit = data.draw(st.one_of(st.none(), st.integers(5, 60)))
        if at.unread:
            stops = scanned(at, limit, lanes)
            reached = {
                name: replace(at.unread[name], done=stop, token=f"{name}@{stop}") for name, stop in stops.items()
            }
            end = after_rows(at, reached)
        else:
            end = after_changes(at, ends, limit)
        if end == at and turn >= 3:
            break
        end = replace(end, first=first) if at is first else end
        read = slices(None if at is first else at, end)
        assert limit is None or sum(each.rows for each in read) <= limit
        for each in (one for group in grouped(read, 3) for one in group):
            if isinstance(each, SnapshotSlice):
                stop = rows[each.bucket] if each.stop is None else each.stop
                assert each.token == (f"{each.bucket}@{each.start}" if each.start else "")
                seen_rows += [(each.bucket, row) for row in range(each.start, stop)]
            else:
                assert not at.unread
                seen_changes += [(each.bucket, change) for change in range(each.start, each.stop)]
        at = Position.of(json.loads(json.dumps(end.json())))
        assert at == end
    assert sorted(seen_rows) == sorted((name, row) for name, count in rows.items() for row in range(count))
    assert seen_changes == sorted(set(seen_changes), key=seen_changes.index)
    assert set(seen_changes) == {(name, each) for name in ends for each in range(starts[name], ends[name])}
    assert behind(at, ends) == 0


@given(log=SIZES, shuffled=st.randoms())
def test_equal_positions_are_equal_texts(log, shuffled):
    names = list(log)
    shuffled.shuffle(names)

    one, other = position({}, log), position({}, {name: log[name] for name in names})

    assert json.dumps(one.json()) == json.dumps(other.json())
    assert json.loads(json.dumps(one.json())) == one.json()


@pytest.mark.parametrize("where", [None, "", "day = '1'"])
def test_what_chooses_partitions_is_kept_and_none_is_not_the_same_as_unknown(where):
    begun = position({"0": 3}, {"0": 1}, where=where)
    ended = replace(begun, first=begun)

    written = json.loads(json.dumps(ended.json()))

    assert Position.of(written) == ended
    assert written.get("where") == where


def test_buckets_are_written_in_their_order():
    log = {"10": 1, "2": 1, "day=2/0": 3, "day=1/10": 3, "day=1/9": 3, PARTITIONS: 4}

    written = list(position({}, log).json()["log"])

    assert written == [PARTITIONS, "2", "10", "day=1/9", "day=1/10", "day=2/0"]


def test_partitions_come_and_go_between_two_positions():
    begin = position({}, {"d=1/0": 5, "d=1/1": 6, "d=2/0": 1, "d=2/1": 1, PARTITIONS: 3}, made={"d=1": 1, "d=2": 2})
    dropped = PartitionEvent(kind=PartitionEventKind.DROPPED, partition="d=1", position=4, timestamp_ms=0)
    anew = PartitionEvent(kind=PartitionEventKind.CREATED, partition="d=1", position=5, timestamp_ms=0)
    moved = after_event(after_event(begin, dropped, 2), anew, 2)

    end = after_changes(moved, {"d=1/0": 3, "d=1/1": 0, "d=2/0": 1, "d=2/1": 4}, None)

    assert end.place == 5
    assert end.made == {"d=1": 4, "d=2": 2}
    assert slices(begin, end) == [
        LogSlice(bucket="d=2/1", partition=2, start=1, stop=4),
        LogSlice(bucket="d=1/0", partition=4, start=0, stop=3),
    ]


def test_a_partition_that_came_later_under_an_old_name_is_not_the_one_of_then():
    class Known:
        def __init__(self, id, name):
            self.id, self.name = id, name

    assert numbers(["d=1", "d=2"], 5, [Known(2, "d=2"), Known(7, "d=1")]) == {"d=2": 2}


def test_offsets_of_two_queries_are_not_mixed():
    with pytest.raises(InvalidArgument, match="not of one query"):
        slices(position({}, {"0": 1}), replace(position({}, {"0": 1}), table=8))


@pytest.mark.parametrize("found", [{}, {"version": 2}, {"version": "1"}])
def test_an_unknown_version_is_refused(found):
    with pytest.raises(UnknownFormat, match="this kolk knows version 1"):
        Position.of(found)


@pytest.mark.parametrize("change", [{"log": [1]}, {"log": {"0": "x"}}, {"unread": {"0": [1]}}, {"made": 3}])
def test_damaged_offsets_are_refused(change):
    with pytest.raises(InvalidArgument, match="no offsets of a query"):
        Position.of({**position({}, {"0": 1}).json(), **change})


@given(SIZES, st.integers(1, 5))
def test_groups_have_every_slice_once_and_none_is_much_larger_than_it_must_be(sizes, groups):
    sliced = [LogSlice(bucket=name, partition=0, start=0, stop=size) for name, size in sizes.items()]

    found = grouped(sliced, groups)

    assert sorted(each.bucket for group in found for each in group) == sorted(sizes)
    assert len(found) == min(groups, len(sizes))
    most = max(sum(each.rows for each in group) for group in found)
    assert most <= sum(sizes.values()) / len(found) + max(sizes.values()) + len(sizes)
