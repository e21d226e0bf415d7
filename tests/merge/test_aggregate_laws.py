"""The laws of aggregate functions, for every one of them: over all types, nulls, groups and cuts, with hostile arrays.

What they are tried on is in ``entries.py``.
"""

import math
import os
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from tests.merge.entries import ENTRIES, HELD_ELSEWHERE, few

from kolk.errors import AggregateOverflow
from kolk.merge.aggregation import Aggregation
from kolk.merge.groups import Groups
from kolk.model.functions import FUNCTIONS, function
from kolk.model.kinds import Kind
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType
from kolk.testing import aggregates as oracle
from kolk.testing.oracle import plain_rows
from kolk.testing.strategies import hostile

laws = settings(max_examples=300 if os.environ.get("KOLK_FULL") else 40, deadline=None)
every_function = pytest.mark.parametrize("name", sorted(ENTRIES))


class Case:
    """A column with a function, and rows in groups that are given to it. ``t`` decides, where something does."""

    def __init__(self, draw: st.DrawFn, name: str) -> None:
        entry = ENTRIES[name]
        self.function = function(name)
        type = DataType.parse(draw(st.sampled_from(entry.types)))
        self.column = Column("v", type, agg=name, params=draw(entry.parameters(type)))
        columns = [Column("k", "int"), self.column]
        if entry.by:
            columns.append(Column("t", draw(st.sampled_from(entry.by)), agg=name.removesuffix("_by")))
        self.schema = Schema(columns, ["k"])
        self.targets = tuple(column.name for column in self.schema.value_columns)
        self.aggregation = Aggregation(self.schema)
        self.is_exact = entry.is_exact(self.column)
        counts = draw(st.lists(st.integers(1, 5), max_size=4))
        rows = sum(counts)
        arrays = []
        for column in self.schema.value_columns:
            input = Column(column.name, column.input)
            values = entry.values(input.type) if column.name == "v" else few(input.type)
            arrays.append(draw(hostile(input, draw(st.lists(values, min_size=rows, max_size=rows)))))
        self.rows = pa.RecordBatch.from_arrays(arrays, names=list(self.targets))
        self.groups = Groups.of_counts(np.array(counts, np.int64))

    # --- the functions

    def accumulate(self, rows: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
        return self._states(rows, groups, MergeMode.ACCUMULATE)

    def merge(self, rows: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
        return self._states(rows, groups, MergeMode.MERGE_STATE)

    def _states(self, rows: pa.RecordBatch, groups: Groups, mode: MergeMode) -> pa.RecordBatch:
        states = self.aggregation.states(rows, groups, self.targets, mode)
        fields = [pa.field(column.name, column.type.arrow) for column in self.schema.value_columns]
        made = pa.RecordBatch.from_arrays(states, schema=pa.schema(fields))
        made.validate(full=True)
        assert made.num_rows == len(groups)
        return made

    def without(self, rows: pa.RecordBatch, retracts: np.ndarray, groups: Groups) -> pa.RecordBatch:
        """What a put that takes some of its rows back makes of nothing."""
        found = np.zeros(len(groups), np.bool_)
        states, removed = self.aggregation.retracting(
            rows, retracts, groups, self.targets, MergeMode.ACCUMULATE
        )  # fmt: skip
        given = pa.RecordBatch.from_arrays(states, names=list(self.targets))
        taken = pa.RecordBatch.from_arrays(removed, names=list(self.targets))
        left = self.aggregation.merged(given, given.slice(0, 0), found, self.targets, taken)
        return pa.RecordBatch.from_arrays([left[name] for name in self.targets], names=list(self.targets))

    # --- the oracle

    def expected(self, rows: pa.RecordBatch, groups: Groups) -> list[Any]:
        values, deciders = plain(rows.column("v")), plain(rows.column("t")) if "t" in self.targets else []
        pieces = [slice(int(start), int(end)) for start, end in zip(groups.starts, groups.ends, strict=True)]
        return [oracle.state_of(self.column, values[piece], deciders[piece]) for piece in pieces]

    def check(self, found: pa.RecordBatch, expected: pa.RecordBatch | list[Any]) -> None:
        values = plain(found.column("v"))
        others = expected if isinstance(expected, list) else plain(expected.column("v"))
        assert len(values) == len(others)
        for value, other in zip(values, others, strict=True):
            assert is_same(value, other, self.column.type, is_exact=self.is_exact), (value, other)


def plain(array: pa.Array) -> list[Any]:
    """Values that the oracle can compare: times are numbers, floats stay floats."""
    if pa.types.is_floating(array.type):
        return array.to_pylist()
    return [row["x"] for row in plain_rows(pa.RecordBatch.from_arrays([array], names=["x"]))]


def is_same(one: Any, other: Any, type: DataType, *, is_exact: bool) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        if is_exact:
            return struct.pack("<d", one) == struct.pack("<d", other)
        return math.isclose(one, other, rel_tol=1e-5 if type.kind is Kind.FLOAT else 1e-9, abs_tol=1e-3)
    if isinstance(one, Decimal) and isinstance(other, Decimal) and not is_exact:
        return True  # a product that is rounded on the way may differ in any digit
    return one == other


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    return Case(draw, name)


def cut(data: st.DataObject, groups: Groups) -> tuple[Groups, Groups]:
    """Groups cut into smaller ones, and the groups of those."""
    smaller: list[int] = []
    parts: list[int] = []
    for count in groups.counts.tolist():
        before, left = len(smaller), count
        while left:
            size = data.draw(st.integers(1, left))
            smaller.append(size)
            left -= size
        parts.append(len(smaller) - before)
    return Groups.of_counts(np.array(smaller, np.int64)), Groups.of_counts(np.array(parts, np.int64))


def may_clip(case: Case) -> bool:
    """Whether it makes a difference at which moment a number is too large."""
    return case.column.agg is not None and case.column.agg.get("overflow") == "saturate"


def test_every_function_has_an_entry():
    names = {each.name for each in FUNCTIONS}

    assert names == set(ENTRIES) | HELD_ELSEWHERE
    assert not set(ENTRIES) & HELD_ELSEWHERE


@every_function
def test_entries_have_all_kinds_of_columns(name):
    assert {DataType.parse(text).kind for text in ENTRIES[name].types} == set(function(name).kinds)


@every_function
@laws
@given(data=st.data())
def test_a_state_is_what_the_oracle_says(name, data):
    case = data.draw(cases(name))
    try:
        expected = case.expected(case.rows, case.groups)
    except AggregateOverflow:
        with pytest.raises(AggregateOverflow):
            case.accumulate(case.rows, case.groups)
    else:
        case.check(case.accumulate(case.rows, case.groups), expected)


@every_function
@laws
@given(data=st.data())
def test_it_does_not_matter_how_rows_are_cut_into_puts_and_states_into_merges(name, data):
    case = data.draw(cases(name))
    assume(not may_clip(case))
    smaller, parts = cut(data, case.groups)
    single = Groups.of_counts(np.ones(case.groups.rows, np.int64))
    try:
        whole = case.accumulate(case.rows, case.groups)
        of_parts = case.merge(case.accumulate(case.rows, smaller), parts)
        of_rows = case.merge(case.accumulate(case.rows, single), case.groups)
        in_steps = case.merge(case.merge(case.accumulate(case.rows, single), smaller), parts)
    except AggregateOverflow:
        reject()

    case.check(of_parts, whole)
    case.check(of_rows, whole)
    case.check(in_steps, whole)


@pytest.mark.parametrize("name", sorted(name for name in ENTRIES if function(name).is_commutative))
@laws
@given(data=st.data())
def test_order_does_not_matter_where_it_should_not(name, data):
    case = data.draw(cases(name))
    order = [
        place
        for start, end in zip(case.groups.starts.tolist(), case.groups.ends.tolist(), strict=True)
        for place in data.draw(st.permutations(range(start, end)))
    ]
    turned = case.rows.take(pa.array(order, pa.int64()))
    try:
        whole = case.accumulate(case.rows, case.groups)
    except AggregateOverflow:
        with pytest.raises(AggregateOverflow):
            case.accumulate(turned, case.groups)
    else:
        case.check(case.accumulate(turned, case.groups), whole)


@pytest.mark.parametrize("name", sorted(name for name in ENTRIES if function(name).is_idempotent))
@laws
@given(data=st.data())
def test_the_same_once_more_changes_nothing_where_it_should_not(name, data):
    case = data.draw(cases(name))
    places = [
        place
        for start, end in zip(case.groups.starts.tolist(), case.groups.ends.tolist(), strict=True)
        for place in [*range(start, end), *range(start, end)]
    ]
    doubled = case.rows.take(pa.array(places, pa.int64()))

    found = case.accumulate(doubled, Groups.of_counts(2 * case.groups.counts))

    case.check(found, case.accumulate(case.rows, case.groups))


@every_function
@laws
@given(data=st.data())
def test_a_total_function_never_leaves_null_and_others_do_if_all_is(name, data):
    case = data.draw(cases(name))
    nothing = pa.RecordBatch.from_arrays(
        [pa.nulls(case.rows.num_rows, array.type) for array in case.rows.columns], names=case.rows.schema.names
    )

    found = case.accumulate(nothing, case.groups).column("v")

    assert found.null_count == (0 if case.function.is_total else len(found))


@every_function
@laws
@given(data=st.data())
def test_a_null_state_is_the_state_of_nothing(name, data):
    if name in ("last_value", "max_by", "min_by"):
        pytest.skip("a null is a value to it")
    case = data.draw(cases(name))
    try:
        states = case.accumulate(case.rows, case.groups)
    except AggregateOverflow:
        reject()
    count = states.num_rows
    both = pa.concat_batches([states, pa.RecordBatch.from_arrays(
        [pa.nulls(count, array.type) for array in states.columns], schema=states.schema
    )])  # fmt: skip
    pairs = Groups.of_counts(np.full(count, 2, np.int64))

    behind = case.merge(both.take(pa.array(np.arange(2 * count).reshape(2, count).T.ravel())), pairs)
    before = case.merge(both.take(pa.array(np.arange(2 * count).reshape(2, count)[::-1].T.ravel())), pairs)

    case.check(behind, states)
    case.check(before, states)


RETRACTABLE = sorted(name for name in ENTRIES if function(name).is_retractable({}))


@pytest.mark.parametrize("name", RETRACTABLE)
@laws
@given(data=st.data())
def test_what_is_taken_back_is_what_the_oracle_says(name, data):
    case = data.draw(cases(name))
    count = case.rows.num_rows
    retracts = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    values, column = plain(case.rows.column("v")), case.column
    pieces = list(zip(case.groups.starts.tolist(), case.groups.ends.tolist(), strict=True))
    steps = [list(zip(retracts[start:end].tolist(), values[start:end], strict=True)) for start, end in pieces]
    if not retracts.any() or has_no_room(column):
        reject()
    try:
        expected = [oracle.state_after(column, None, each) for each in steps]
    except AggregateOverflow:
        with pytest.raises(AggregateOverflow):
            case.without(case.rows, retracts, case.groups)
    else:
        case.check(case.without(case.rows, retracts, case.groups), expected)


def has_no_room(column: Column) -> bool:
    """Whether not even Arrow's widest decimal has room for what comes and goes in one put."""
    return column.type.kind is Kind.DECIMAL and column.type.arguments[0] == 38


@pytest.mark.parametrize("name", [name for name in RETRACTABLE if not name.startswith("last_value")])
@laws
@given(data=st.data())
def test_what_is_taken_back_is_as_if_it_had_never_come(name, data):
    case = data.draw(cases(name))
    assume(case.is_exact and not has_no_room(case.column) and not may_clip(case))
    count, extra = case.rows.num_rows, data.draw(st.integers(0, case.rows.num_rows))
    try:
        kept = case.accumulate(case.rows, case.groups)
    except AggregateOverflow:
        reject()
    # Some of each group's rows come once more and go again, in one group behind the others' rows.
    again = case.rows.slice(0, extra)
    numbers = case.groups.numbers
    rows = pa.concat_batches([case.rows, again, again])
    owners = np.concatenate([numbers, numbers[:extra], numbers[:extra]])
    retracts = np.concatenate([np.zeros(count + extra, np.bool_), np.ones(extra, np.bool_)])
    order = np.argsort(owners, kind="stable")
    groups = Groups.of_counts(np.bincount(owners, minlength=len(case.groups)))

    found = case.without(rows.take(pa.array(order)), retracts[order], groups)

    case.check(found, kept)


@pytest.mark.parametrize("name", sorted(name for name in ENTRIES if not ENTRIES[name].by))
def test_one_group_of_very_many_rows_is_like_several(name):
    """Trees and halves are as deep as a group is large."""
    entry = ENTRIES[name]
    type = DataType.parse("bigint" if "bigint" in entry.types else entry.types[-1])
    column = Column("v", type, agg=name)
    aggregation = Aggregation(Schema([Column("k", "int"), column], ["k"]))
    count = 100_003
    values: dict[Kind, pa.Array] = {
        Kind.BIGINT: pa.array(np.arange(count) % 3 - 1),
        Kind.BOOLEAN: pa.array(np.arange(count) % 3 == 0),
        Kind.STRING: pc.cast(pa.array(np.arange(count) % 10), pa.string()),
        Kind.ROW: pa.array([{"x": 1, "y": None}] * count, type.arrow) if type.kind is Kind.ROW else None,
    }
    given = pa.record_batch({"v": values[type.kind]})

    (found,) = aggregation.states(given, Groups.of_counts(np.array([count])), ["v"], MergeMode.ACCUMULATE)

    cuts = Groups.of_counts(np.array([1, 10_000, 90_000, 2]))
    (parts,) = aggregation.states(given, cuts, ["v"], MergeMode.ACCUMULATE)
    (merged,) = aggregation.states(
        pa.record_batch({"v": parts}), Groups.of_counts(np.array([4])), ["v"], MergeMode.MERGE_STATE
    )
    assert merged.equals(found)
