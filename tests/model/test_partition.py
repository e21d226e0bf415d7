"""Partitions as values: their names, what may stand in one, and a table's partitions at a place in their record."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidArgument, InvalidRows, InvalidSchema, PartitionDropped
from kolk.model.partition import (
    PARTITIONS,
    Layout,
    Partition,
    PartitionEvent,
    PartitionEventKind,
    RecordedEvent,
    after,
    check_name,
    check_partition_by,
    parse_partition,
    partition_name,
    partition_of,
    values_batch,
    values_of,
)
from kolk.model.schema import Column, Schema

DAY, REGION, HOUR = Column("day", "date"), Column("region", "string"), Column("hour", "int")
WORDS = st.from_regex(r"(?!__)[A-Za-z0-9_-]{1,30}", fullmatch=True)
DATES = st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))
VALUES = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "char(30)": WORDS,
    "string": WORDS,
    "date": DATES,
}


@st.composite
def columns_and_values(draw):
    """Some partition columns and a value of each."""
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=8))
    columns = [Column(f"c{place}", type) for place, type in enumerate(types)]
    return columns, {column.name: draw(VALUES[type]) for column, type in zip(columns, types, strict=True)}


@given(columns_and_values())
def test_a_name_is_read_back_as_the_partition_that_it_names(drawn):
    columns, values = drawn

    name = partition_name(columns, values)

    assert parse_partition(columns, name) == name
    assert list(values_of(name)) == [column.name for column in columns]
    assert partition_name(columns, values_of(name)) == name
    check_name(columns, name)


@given(columns_and_values())
def test_the_values_of_names_come_back_as_rows_of_the_partition_columns(drawn):
    columns, values = drawn

    batch = values_batch(columns, [partition_name(columns, values)] * 2)

    assert batch.to_pylist() == [values] * 2
    assert batch.schema == pa.schema([column.arrow for column in columns])


@given(st.text(max_size=250))
def test_any_text_is_a_value_that_reads_back_or_is_refused(text):
    try:
        name = partition_name([REGION], {"region": text})
    except (InvalidArgument, InvalidRows):
        with pytest.raises((InvalidArgument, InvalidRows)):
            check_name([REGION], f"region={text}")
    else:
        assert values_of(name) == {"region": text}
        check_name([REGION], name)


def test_a_value_has_one_form_however_it_is_written():
    assert partition_name([HOUR], {"hour": "007"}) == "hour=7"
    assert partition_name([HOUR], {"hour": 7}) == "hour=7"
    assert partition_name([DAY], {"day": datetime.date(2026, 11, 5)}) == "day=2026-11-05"
    assert parse_partition([DAY, HOUR], "hour=07/day=2026-11-05") == "day=2026-11-05/hour=7"


@pytest.mark.parametrize("value", ["", "a/b", "a=b", "__a", "a b", "ä", "a" * 201, "a\n", "..", "a/region=b"])
def test_a_value_that_would_not_stand_in_a_name_is_refused(value):
    with pytest.raises(InvalidRows, match="cannot be a value of the partition column 'region'"):
        partition_name([REGION], {"region": value})


@pytest.mark.parametrize("value", [None, "\ud800", 1.5, object(), ["a"]])
def test_what_is_no_value_of_the_column_is_refused(value):
    with pytest.raises((InvalidArgument, InvalidRows)):
        partition_name([REGION], {"region": value})


@pytest.mark.parametrize(
    ("column", "value"),
    [(HOUR, 7.5), (HOUR, 7.0), (HOUR, True), (DAY, datetime.datetime(2026, 11, 5, 15)), (DAY, 20_000)],  # noqa: DTZ001
)
def test_a_value_that_only_comes_near_names_no_partition(column, value):
    with pytest.raises(InvalidArgument, match="is not a value of the partition column"):
        partition_name([column], {column.name: value})


@pytest.mark.parametrize("value", ["x", "2026-02-30", "10000-01-01", 2**31, "9" * 1000, "9" * 4_000_000])
def test_a_value_out_of_range_is_refused_in_few_words(value):
    for column in (DAY, HOUR):
        with pytest.raises(InvalidArgument) as caught:
            partition_name([column], {column.name: value})
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name", ["", "day", "day=2026-11-15/", "day=1/day=2", "region=eu", "2026-11-15", None, 7, "/" * 4_000_000]
)
def test_a_text_that_names_no_partition_is_refused(name):
    with pytest.raises(InvalidArgument):
        parse_partition([DAY], name)


@pytest.mark.parametrize("name", ["day=10000-01-01", "day=-0221-09-04", "day=1/0", "day=2026-11-15/region=eu"])
def test_rows_whose_values_do_not_read_back_belong_to_no_partition(name):
    with pytest.raises(InvalidRows):
        check_name([DAY], name)


def test_a_value_with_a_slash_cannot_pass_for_two_values():
    with pytest.raises(InvalidRows, match="cannot be a partition"):
        check_name([REGION], "region=eu/zone=a")


# --- what a table may be cut by


@pytest.mark.parametrize(
    ("columns", "key", "names", "why"),
    [
        (["a string", "b int"], ["a", "b"], ["c"], "is not a column"),
        (["a string", "b int", "c int"], ["a", "b"], ["c"], "not in the primary key"),
        (["a string", "b int"], ["a", "b"], ["a", "a"], "twice"),
        (["a string", "b int"], ["a", "b"], ["a", "b"], "whole primary key"),
        (["a string", "b int"], ["a", "b"], "a", "list of column names"),
        (["a string", "b int"], ["a", "b"], [1], "list of column names"),
        (["a binary", "b int"], ["a", "b"], ["a"], "use one of"),
        (["a decimal(3)", "b int"], ["a", "b"], ["a"], "use one of"),
        (["a string", "b int"], [], ["a"], "NOT NULL"),
        ([f"c{n} int" for n in range(10)], [f"c{n}" for n in range(10)], [f"c{n}" for n in range(9)], "at most 8"),
    ],
)
def test_a_table_is_not_cut_by_what_would_not_hold(columns, key, names, why):
    schema = Schema([Column(*column.split(" ", 1)) for column in columns], primary_key=key)

    with pytest.raises(InvalidSchema, match=why):
        check_partition_by(names, schema)


def test_a_log_table_is_cut_by_any_column_that_is_not_null():
    schema = Schema([Column("a", "string", nullable=False), Column("b", "int")])

    assert check_partition_by(["a"], schema) == ("a",)


# --- the record


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(0, 10))
def test_the_partitions_at_a_place_are_those_that_there_were_when_it_was_the_present(names, trimmed):
    present: dict[str, Partition] = {}
    events: list[RecordedEvent] = []
    history = [dict(present)]
    for number, name in enumerate(names, 1):
        kind = PartitionEventKind.DROPPED if name in present else PartitionEventKind.CREATED
        made = Partition(id=number, name=name, created_ms=0)
        partition = present.pop(name) if name in present else present.setdefault(name, made)
        events.append(RecordedEvent(number=number, kind=kind, partition=partition, timestamp_ms=0))
        history.append(dict(present))
    kept = events[trimmed:]

    layout = Layout(present, tuple(kept), len(names) + 1)

    for position in range(layout.start, layout.position + 1):
        assert layout.at(position) == history[position - 1]
        assert layout.since(position) == tuple(events[position - 1 :])


def test_a_drop_takes_the_offsets_of_its_buckets_and_of_no_others():
    offsets = {"a=1/0": 3, "a=1/1": 4, "a=11/0": 5, PARTITIONS: 2}
    event = PartitionEvent(kind=PartitionEventKind.DROPPED, partition="a=1", position=7, timestamp_ms=0, unread=2)

    assert after(event, offsets) == {"a=11/0": 5, PARTITIONS: 7}
    assert after(event, {"a=1/0": 3, "a=11/0": 5}) == {"a=11/0": 5}
    assert partition_of("a=1/b=2/10") == "a=1/b=2"


@pytest.mark.parametrize(("unread", "words"), [(1234, "1,234 changes"), (None, "not read to its end")])
def test_the_error_of_an_event_says_which_partition_and_how_much(unread, words):
    event = PartitionEvent(kind=PartitionEventKind.DROPPED, partition="a=1", position=7, timestamp_ms=0, unread=unread)

    error = event.error

    assert isinstance(error, PartitionDropped)
    assert (error.partition, error.unread) == ("a=1", unread)
    assert words in str(error)
    assert "a=1" in str(error)
