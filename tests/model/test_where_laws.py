"""Predicates: the laws, against a slow twin that knows one row at a time and all three truth values."""

import contextlib
import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidArgument
from kolk.model.predicate import Predicate
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType, Kind
from kolk.testing.strategies import batches, schemas, values_of

DAY = 86_400 * 10**9
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
EPOCH = datetime.date(1970, 1, 1).toordinal()
FLOATS = (Kind.FLOAT, Kind.DOUBLE)
TEXTS = (Kind.CHAR, Kind.STRING)
OCTETS = (Kind.BINARY, Kind.BYTES)
TIMESTAMPS = (Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
Row = dict[str, Any]


@dataclass
class Said:
    """Something about a row: as text, and as what it is of a row: True, False or None. A column that the row does not
    have may be anything."""

    text: str
    outcomes: Callable[[Row], set[bool | None]]


# --- values of all types, in one order each


def plain(array: pa.Array, type: DataType) -> list[Any]:
    """Arrow's values as Python's that compare as the column's should."""
    if type.kind in (Kind.TIME, *TIMESTAMPS):
        units = array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32()).to_pylist()
        return [None if unit is None else unit * UNITS[type.unit] for unit in units]
    if type.kind is Kind.DATE:
        return array.cast(pa.int32()).to_pylist()
    return [None if value is None else ordered(value, type) for value in array.to_pylist()]


def ordered(value: Any, type: DataType) -> Any:
    if type.kind in FLOATS:
        return (1, 0) if math.isnan(value) else (0, value)
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bool | bytes) or type.is_nested else Decimal(value)


def rows_of(batch: pa.RecordBatch, schema: Schema) -> list[Row]:
    columns = {name: plain(batch.column(name), schema.column(name).type) for name in batch.schema.names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# --- literals: text, and the value it means


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def clock(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:09}"


def day(days: int) -> str:
    return datetime.date.fromordinal(days + EPOCH).isoformat()


def stamp(nanoseconds: int) -> str:
    return f"{day(nanoseconds // DAY)}T{clock(nanoseconds % DAY)}"


def written(value: Any, type: DataType) -> str:
    """The text of a value of the kind that the column holds, whether or not this column can hold it."""
    match type.kind:
        case Kind.BOOLEAN:
            return str(value)
        case Kind.FLOAT | Kind.DOUBLE if value[0]:
            return "'NaN'"
        case Kind.FLOAT | Kind.DOUBLE:
            number = value[1]
            return quoted("inf" if number > 0 else "-inf") if number in (math.inf, -math.inf) else f"{number!s}"
        case Kind.CHAR | Kind.STRING:
            return quoted(value.decode())
        case Kind.BINARY | Kind.BYTES:
            return f"x'{value.hex()}'"
        case Kind.DATE:
            return f"DATE '{day(value)}'"
        case Kind.TIME:
            return quoted(clock(value))
        case Kind.TIMESTAMP:
            return f"timestamp '{stamp(value)}'"
        case Kind.TIMESTAMP_LTZ:
            return f"'{stamp(value)}+00:00'"
        case _:
            return f"{value:f}"


def exact_values(type: DataType) -> st.SearchStrategy[Any]:
    """Values that a column of this type can hold, and others of its kind that it cannot."""
    kind = type.kind
    if kind in TEXTS:
        return values_of(DataType(Kind.STRING)).map(str.encode)
    if kind in OCTETS:
        return values_of(DataType(Kind.BYTES))
    if kind is Kind.TIME:
        return st.integers(0, DAY - 1)
    if kind in TIMESTAMPS:
        return st.tuples(values_of(DataType(Kind.DATE)), st.integers(0, DAY - 1)).map(lambda at: at[0] * DAY + at[1])
    if kind in FLOATS:
        beyond = st.sampled_from([(0, Decimal("1e400")), (0, Decimal("-1e400"))])
        return beyond | values_of(type).map(lambda value: ordered(value, type))
    if kind in (Kind.BOOLEAN, Kind.DATE):
        return values_of(type)
    return st.builds(
        lambda digits, places: Decimal(digits).scaleb(-places), st.integers(-(10**27), 10**27), st.integers(0, 12)
    ) | values_of(type).map(Decimal)


# --- expressions


def said_of(
    draw: st.DrawFn, column: Column, texts: tuple[str, ...], judge: Callable[[Any], bool | None], *, of_null: Any = None
) -> Said:
    def outcomes(row: Row) -> set[bool | None]:
        if column.name not in row:
            return {True, False, None}
        value = row[column.name]
        return {of_null if value is None else judge(value)}

    return Said(draw(st.sampled_from(texts)), outcomes)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@st.composite
def terms(draw: st.DrawFn, schema: Schema, rows: list[Row]) -> Said:
    column = draw(st.sampled_from(schema.columns))
    name, type = f"`{column.name}`", column.type
    form = draw(st.sampled_from(["null", "compare", "mirror", "in", "between"])) if not type.is_nested else "null"
    negated = draw(st.booleans())
    word = "NOT " if negated else ""
    if form == "null":
        return said_of(draw, column, (f"{name} is {word}null",), lambda _: negated, of_null=not negated)
    stored = [row[column.name] for row in rows if row[column.name] is not None]
    values = st.sampled_from(stored) | exact_values(type) if stored else exact_values(type)
    if form == "in":
        among = draw(st.lists(values, min_size=1, max_size=4))
        listed = ", ".join(written(value, type) for value in among)
        return said_of(draw, column, (f"{name} {word}IN ({listed})",), lambda value: (value in among) is not negated)
    if form == "between":
        least, greatest = draw(values), draw(values)
        text = f"{name} {word}between {written(least, type)} and {written(greatest, type)}"
        return said_of(draw, column, (text,), lambda value: (least <= value <= greatest) is not negated)
    symbol = draw(st.sampled_from(sorted(COMPARISONS)))
    compare, other = COMPARISONS[symbol], draw(values)
    if form == "mirror":
        return said_of(draw, column, (f"{written(other, type)} {symbol} {name}",), lambda value: compare(other, value))
    return said_of(draw, column, (f"{name} {symbol} {written(other, type)}",), lambda value: compare(value, other))


def negation(said: Said) -> Said:
    return Said(
        f"NOT ({said.text})",
        lambda row: {None if outcome is None else not outcome for outcome in said.outcomes(row)},
    )


def joined(word: str, deciding: bool, parts: list[Said]) -> Said:
    """AND or OR: one part may decide it; else it is null if a part is."""

    def together(outcomes: tuple[bool | None, ...]) -> bool | None:
        return deciding if deciding in outcomes else None if None in outcomes else not deciding

    def outcomes(row: Row) -> set[bool | None]:
        return {together(chosen) for chosen in product(*(part.outcomes(row) for part in parts))}

    return Said("(" + f" {word} ".join(part.text for part in parts) + ")", outcomes)


def expressions(schema: Schema, rows: list[Row]) -> st.SearchStrategy[Said]:
    constants = st.sampled_from([Said("true", lambda _: {True}), Said("FALSE", lambda _: {False})])
    leaves = st.integers(0, 9).flatmap(lambda number: terms(schema, rows) if number else constants)

    def grown(inner: st.SearchStrategy[Said]) -> st.SearchStrategy[Said]:
        several = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            inner.map(negation),
            several.map(lambda parts: joined("AND", False, parts)),
            several.map(lambda parts: joined("OR", True, parts)),
        )

    return st.recursive(leaves, grown, max_leaves=6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, pa.RecordBatch, list[Row], Said]:
    schema = draw(schemas(max_key=1, min_values=1, max_values=2))
    batch = draw(batches(schema, max_rows=6))
    rows = rows_of(batch, schema)
    return schema, batch, rows, draw(expressions(schema, rows))


# --- the laws


@given(cases())
def test_a_mask_is_what_three_valued_logic_says_row_by_row(case):
    schema, batch, rows, said = case

    mask = Predicate.parse(said.text, schema).mask(batch)

    assert mask.tolist() == [said.outcomes(row) == {True} for row in rows]


@given(cases())
def test_a_predicate_is_read_back_from_its_own_text(case):
    schema, batch, _, said = case
    predicate = Predicate.parse(said.text, schema)

    again = Predicate.parse(str(predicate), schema)

    assert again == predicate
    assert str(again) == str(predicate)
    assert again.mask(batch).tolist() == predicate.mask(batch).tolist()


@given(cases(), st.data())
def test_what_may_match_is_never_pruned_wrongly_and_pruned_when_the_known_columns_decide(case, data):
    schema, batch, rows, said = case
    names = data.draw(st.lists(st.sampled_from(schema.names), unique=True))
    predicate = Predicate.parse(said.text, schema)

    may = predicate.may_match(batch.select(names)).tolist()

    assert all(may[place] for place, is_selected in enumerate(predicate.mask(batch).tolist()) if is_selected)
    for row, kept in zip(rows, may, strict=True):
        if True not in said.outcomes({name: row[name] for name in names}):
            assert not kept


@given(cases())
def test_with_all_columns_known_what_may_match_is_what_matches(case):
    schema, batch, _, said = case
    predicate = Predicate.parse(said.text, schema)

    assert predicate.may_match(batch).tolist() == predicate.mask(batch).tolist()


# --- hostile text

HOSTILE = Schema(
    [
        Column("n", "bigint"),
        Column("s", "string"),
        Column("d", "double"),
        Column("p", "decimal(38, 38)"),
        Column("b", "binary(2)"),
        Column("ts", "timestamp(9)"),
        Column("seen", "timestamp_ltz(0)"),
        Column("t", "time(8)"),
        Column("day", "date"),
        Column("flag", "boolean"),
        Column("m", "map<int, int>"),
    ]
)
WORDS = """
    AND OR NOT IN IS NULL BETWEEN TRUE FALSE DATE TIME TIMESTAMP TIMESTAMP_LTZ X n s d p b ts seen t day flag m nope
    ( ) , = == != <> < <= > >= ! - + . ; 0 1 1.5 .5 5. 1e5 1e-999 1e9999 1e 99999999999999999999 -- /* */ ' '' 'x' 'NaN'
    '-inf' '2026-11-15' '9999-12-31T23:59:59.999999999' '0001-01-01 00:00:00Z' '9999-12-31T23:59:59-18:00' '23:59' X'ff'
    ` `n` "s" `` "" \u0661 '\u0661' \u00e9 \x00 \ud800 '\ud800' '\x00'
"""
words = st.sampled_from(WORDS.split())
soup = st.lists(words, max_size=30).map(" ".join)
# What begins well, and goes wrong somewhere.
almost = st.lists(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(HOSTILE.names),
        st.sampled_from(["=", "<", ">=", "IN (1,", "BETWEEN", "NOT IN", "IS"]),
        words,
    ),
    min_size=1,
    max_size=6,
).flatmap(lambda parts: st.sampled_from([" AND ", " OR ", " AND NOT (", " "]).map(lambda joint: joint.join(parts)))


@given(st.one_of(st.text(), soup, almost))
def test_any_text_is_a_predicate_or_an_invalid_argument_and_nothing_else(text):
    with contextlib.suppress(InvalidArgument):
        predicate = Predicate.parse(text, HOSTILE)

        assert Predicate.parse(str(predicate), HOSTILE) == predicate
        predicate.mask(pa.RecordBatch.from_arrays([pa.nulls(2, f.type) for f in HOSTILE.arrow], schema=HOSTILE.arrow))
