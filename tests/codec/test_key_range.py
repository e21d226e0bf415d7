"""The range of keys that a predicate can select: nothing selected lies outside, and little else lies inside."""

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.test_where_laws import expressions, rows_of

from kolk.codec.key import KEY_BYTES_MAX, KeyCodec
from kolk.codec.key_range import key_range
from kolk.model.literals import INTEGER_BITS, Literal, exact_of_scalar
from kolk.model.predicate import Predicate
from kolk.model.schema import Column, Schema
from kolk.model.terms import Always, Comparison, IsNull, OneOf, Operator, all_of, any_of, compared, one_of
from kolk.model.types import DataType, Kind
from kolk.testing.strategies import Keys, batches, data_types, schemas, values_of

ROWS = (b"\x01", b"\x02")
TEXTS = (Kind.CHAR, Kind.STRING)
RANGES = [Operator.LESS, Operator.LESS_EQUAL, Operator.GREATER, Operator.GREATER_EQUAL]
KEY_TYPES = data_types(for_key=True)
NUMBERS = ["boolean", "tinyint", "smallint", "int", "bigint", "decimal(5, 2)", "decimal(30, 4)"]
MOMENTS = ["date", "time(2)", "timestamp(5)", "timestamp_ltz(9)"]
EACH_TYPE = [*NUMBERS, *MOMENTS, "binary(2)", "char(4)", "string", "bytes"]


def schema_of(*types):
    names = list("abcd"[: len(types)])
    key = [Column(name, type) for name, type in zip(names, types, strict=True)]
    return Schema([*key, Column("v", "int")], names)


def found(types, where):
    schema = schema_of(*types)
    return key_range(Predicate.parse(where, schema), KeyCodec(schema))


def range_of_tree(root, schema):
    return key_range(Predicate(root), KeyCodec(schema))


def spelled(text):
    start, end = text.split(" - ")
    return bytes.fromhex("01" + start), b"\x02" if end == "end" else bytes.fromhex("01" + end)


# --- operators


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a = 1", "80000001 - 80000002"),
        ("a < 1", " - 80000001"),
        ("a <= 1", " - 80000002"),
        ("a > 1", "80000002 - end"),
        ("a >= 1", "80000001 - end"),
        ("a > 255", "80000100 - end"),
        ("a = 2147483647", "ffffffff - end"),
        ("a <= 2147483647", " - end"),
        ("a >= -2147483648", "00000000 - end"),
        ("a < -1", " - 7fffffff"),
        ("1 < a AND 7 >= a", "80000002 - 80000008"),
        ("a BETWEEN 2 AND 5", "80000002 - 80000006"),
        ("a IN (7, -1, 3)", "7fffffff - 80000008"),
        ("a IN (4, 4)", "80000004 - 80000005"),
        ("a IN (1, 5, 9) AND a > 3", "80000004 - 8000000a"),
        ("a = 1 OR a = 5", "80000001 - 80000006"),
        ("a > 3 AND (a = 1 OR a = 5)", "80000004 - 80000006"),
        ("a < 1.5", " - 80000002"),
        ("a >= 1.5", "80000002 - end"),
        ("a = 1 AND v = 2", "80000001 - 80000002"),
        ("NOT (a < 1 OR a >= 5)", "80000001 - 80000005"),
    ],
)
def test_every_operator_bounds_an_integer_key_exactly(where, expected):
    assert found(["int"], where) == spelled(expected)


@pytest.mark.parametrize(
    "where",
    ["TRUE", "a <> 1", "a NOT IN (1, 2)", "a IS NOT NULL", "v = 1", "a = 1 OR v = 1", "a < 1 OR a > 0", "a > -1e30"],
)
def test_what_bounds_no_key_is_the_range_of_all_rows(where):
    assert found(["int"], where) == ROWS


def test_no_predicate_is_the_range_of_all_rows():
    assert key_range(None, KeyCodec(schema_of("string"))) == ROWS


@pytest.mark.parametrize(
    "where",
    [
        "FALSE",
        "a = 1 AND a = 2",
        "a = 1.5",
        "a > 1 AND a < 2",
        "a < 1 AND a > 1",
        "a BETWEEN 3 AND 2",
        "a IN (1, 2) AND a IN (3, 4)",
        "a > 2147483647",
        "b = 'x' AND b = 'y'",
        "a > 5 AND b = 'x' AND b > 'x'",
        "a = 1 AND (b = 'x' OR b = 'z') AND b > 'z'",
        "a = 1 AND a = 2 OR b = 'x' AND b = 'y'",
    ],
)
def test_a_contradiction_has_no_range(where):
    assert found(["int", "string"], where) is None


# --- types


@pytest.mark.parametrize(
    ("type", "where", "expected"),
    [
        ("boolean", "a", "01 - 02"),
        ("boolean", "NOT a", "00 - 01"),
        ("boolean", "a < TRUE", " - 01"),
        ("boolean", "a > FALSE", "01 - end"),
        ("tinyint", "a > -1", "80 - end"),
        ("smallint", "a <= -1", " - 8000"),
        ("bigint", "a = -2", "7ffffffffffffffe - 7fffffffffffffff"),
        ("decimal(4, 2)", "a <= 1.5", " - 8000000000000097"),
        ("decimal(4, 2)", "a < 1.234", " - 800000000000007c"),
        ("decimal(4, 2)", "a > -0.01", "8000000000000000 - end"),
        ("decimal(20, 0)", "a = -1", "7fffffffffffffffffffffffffffffff - 80000000000000000000000000000000"),
        ("binary(2)", "a = X'00ff'", "00ff - 0100"),
        ("binary(2)", "a > X'ffff'", None),
        ("binary(2)", "a >= X'ff'", "ff00 - end"),
        ("binary(2)", "a <= X'00ff00'", " - 0100"),
        ("date", "a < '1970-01-02'", " - 80000001"),
        ("time(0)", "a >= '00:00:10'", "8000000a - end"),
        ("time(6)", "a = '00:00:00.000001'", "8000000000000001 - 8000000000000002"),
        ("timestamp(3)", "a > '1969-12-31 23:59:59.999'", "8000000000000000 - end"),
        ("timestamp(2)", "a <= '1970-01-01 00:00:00.019'", " - 800000000000000b"),
        ("timestamp(2)", "a >= '1970-01-01 00:00:00.019'", "800000000000000b - end"),
        ("timestamp_ltz(0)", "a = '1970-01-01 01:00:01+01:00'", "8000000000000001 - 8000000000000002"),
        ("char(3)", "a = 'ab'", "6162 - 616200"),
        ("char(3)", "a > 'abcde'", "616263646500 - end"),
        ("string", "a = ''", " - 00"),
        ("string", "a < 'b'", " - 62"),
        ("string", "a <= 'b'", " - 6200"),
        ("string", "a > 'b'", "6200 - end"),
        ("string", "a >= '\0'", "00 - end"),
        ("string", "a IN ('é', 'z')", "7a - c3a900"),
        ("bytes", "a = X'00ff'", "00ff - 00ff00"),
        ("bytes", "a <= X'ff'", " - ff00"),
    ],
)
def test_every_type_of_key_has_its_bounds(type, where, expected):
    assert found([type], where) == (None if expected is None else spelled(expected))


@pytest.mark.parametrize(
    ("type", "where", "expected"),
    [
        ("string", "a = 'x'", "780000 - 780001"),
        ("string", "a < 'x'", " - 780000"),
        ("string", "a <= 'x'", " - 780001"),
        ("string", "a > 'x'", "780001 - end"),
        ("string", "a >= 'x'", "780000 - end"),
        ("char(3)", "a = ''", "0000 - 0001"),
        ("bytes", "a = X'00'", "00ff0000 - 00ff0001"),
        ("bytes", "a > X'ff00'", "ff00ff0001 - end"),
    ],
)
def test_a_text_that_other_columns_follow_is_bounded_by_its_terminator(type, where, expected):
    assert found([type, "int"], where) == spelled(expected)


# --- several columns


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a = 1 AND b = 'x'", "80000001780000 - 80000001780001"),
        ("b = 'x' AND c >= 0 AND a = 1", "8000000178000080 - 80000001780001"),
        ("a = 1 AND b = 'x' AND c = 127", "80000001780000ff - 80000001780001"),
        ("a = 2147483647 AND c = 5", "ffffffff - end"),
        ("a = 1 AND b > 'x' AND c = 5", "80000001780001 - 80000002"),
        ("a = 2147483647 AND b <= 'x'", "ffffffff - ffffffff780001"),
        ("a >= 1 AND a <= 1 AND b = 'x'", "80000001780000 - 80000001780001"),
        ("a > 254 AND a < 256 AND b = 'x'", "800000ff780000 - 800000ff780001"),
        ("a > 2147483646 AND b = 'x'", "ffffffff780000 - ffffffff780001"),
        ("a = 1 AND c = 5", "80000001 - 80000002"),
        ("a > 1 AND b = 'x'", "80000002 - end"),
        ("b = 'x'", " - end"),
        ("a = 1 AND (b = 'x' OR b = 'z')", "80000001780000 - 800000017a0001"),
        ("a = 1 AND (b = 'x' OR c = 5)", "80000001 - 80000002"),
        ("a = 1 AND b = 'x' OR a = 2 AND b = 'z'", "80000001780000 - 800000027a0001"),
        ("a = 1 AND b = 'x' AND b = 'y' OR a = 2 AND b = 'z'", "800000027a0000 - 800000027a0001"),
        ("(a = 1 AND b = 'x' OR a = 1 AND b = 'z') AND v = 1", "80000001780000 - 800000017a0001"),
    ],
)
def test_equal_columns_extend_the_prefix_and_a_range_ends_it(where, expected):
    assert found(["int", "string", "tinyint"], where) == spelled(expected)


# --- what is not understood, or too long

LONG = "x" * KEY_BYTES_MAX


@pytest.mark.parametrize("operator", ["=", "<", "<=", ">", ">="])
def test_a_value_longer_than_any_key_narrows_nothing(operator):
    assert found(["string"], f"a {operator} '{LONG}'") == ROWS


def test_a_column_too_long_for_the_key_leaves_the_prefix_before_it():
    assert found(["int", "string"], f"a = 1 AND b = '{LONG}'") == spelled("80000001 - 80000002")


def test_the_longest_key_has_a_range_of_its_own():
    longest = LONG[1:]

    bounds = found(["string"], f"a = '{longest}'")

    assert bounds == (b"\x01" + longest.encode(), b"\x01" + longest[1:].encode() + b"y")


def test_columns_that_are_too_long_together_are_bounded_by_what_fits_a_key():
    half = "x" * (KEY_BYTES_MAX - 10)

    bounds = found(["string", "string"], f"a = '{half}' AND b = '{half}'")

    assert bounds is not None
    start, end = bounds
    assert start == b"\x01" + half.encode() + b"\0\0" + b"x" * 7
    assert end == b"\x01" + half.encode() + b"\0\0" + b"x" * 6 + b"y"


@pytest.mark.parametrize(
    "term",
    [
        Comparison("nope", DataType(Kind.INT), Operator.EQUAL, Literal("1", pa.scalar(1, pa.int32()))),
        Comparison("a", DataType(Kind.BIGINT), Operator.EQUAL, Literal("1", pa.scalar(1, pa.int64()))),
        Comparison("a", DataType(Kind.INT), Operator.EQUAL, Literal("1", pa.scalar(1, pa.int64()))),
        Comparison("a", DataType(Kind.INT), Operator.EQUAL, Literal("NULL", pa.scalar(None, pa.int32()))),
        OneOf("a", DataType(Kind.INT), (), negated=False),
        IsNull("a", DataType(Kind.INT)),
    ],
)
def test_a_term_that_says_nothing_of_the_key_narrows_nothing(term):
    assert range_of_tree(term, schema_of("int")) == ROWS


# --- laws: no selected row lies outside


def is_within(key, bounds):
    return bounds is not None and bounds[0] <= key < bounds[1]


def check_all_selected_are_within(where, schema, batch):
    bounds = key_range(where, KeyCodec(schema))

    keys = KeyCodec(schema).encode(batch).to_pylist()
    selected = [key for key, is_selected in zip(keys, where.mask(batch), strict=True) if is_selected]
    assert all(is_within(key, bounds) for key in selected)
    assert bounds is None or ROWS[0] <= bounds[0] < bounds[1] <= ROWS[1]


@given(st.data())
def test_no_row_that_any_text_selects_lies_outside(data):
    schema = data.draw(schemas(max_values=1))
    batch = data.draw(batches(schema, keys=data.draw(st.sampled_from(Keys)), max_rows=6))
    said = data.draw(expressions(schema, rows_of(batch, schema)))

    check_all_selected_are_within(Predicate.parse(said.text, schema), schema, batch)


def near(value, type):
    """The same, and values of the type that lie right beside it, or at an end."""
    if type.kind in TEXTS:
        return [value, value + "\0", value + "\0\0", value + "\x01", value[:-1]]
    if type.kind is Kind.BYTES:
        return [value, value + b"\0", value + b"\0\0", value + b"\xff", value[:-1]]
    if type.kind in INTEGER_BITS:
        half = 2 ** (INTEGER_BITS[type.kind] - 1)
        return [value, max(value - 1, -half), min(value + 1, half - 1), half - 1]
    if type.kind is Kind.DECIMAL:
        return [value, value.copy_negate(), Decimal(0)]  # a minus would round
    if type.kind is Kind.BINARY:
        return [value, value[:-1] + b"\0", value[:-1] + b"\xff"]
    return [value]


def beside(exact, type):
    """What a literal may mean, which the column's type may not be able to hold: it is floored then."""
    match exact:
        case int() if type.kind in (Kind.BOOLEAN, Kind.DATE):
            return [exact]
        case str():
            return [exact, exact + "a"]
        case bytes():
            return [exact, exact + b"\0", exact[:-1]]
        case _ if type.kind in (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ):
            return [exact, exact + Fraction(1, 3)]
        case _:
            return [exact, exact + Fraction(1, 3), exact - Fraction(1, 3)]


@st.composite
def near_rows(draw, schema):
    """Rows of which many share columns, or nearly so."""
    pools = []
    for column in schema.columns:
        few = draw(st.lists(values_of(column.type), min_size=1, max_size=3))
        pools.append(st.sampled_from([each for value in few for each in near(value, column.type)]))
    rows = draw(st.lists(st.tuples(*pools), min_size=1, max_size=12))
    columns = zip(schema.columns, zip(*rows, strict=True), strict=True)
    arrays = [pa.array(values, column.type.arrow) for column, values in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


@st.composite
def tables(draw, **limits):
    schema = draw(schemas(max_values=1, value_types=KEY_TYPES, **limits))
    return schema, draw(near_rows(schema))


def exacts_of(batch, column):
    exacts = [exact_of_scalar(scalar, column.type) for scalar in batch.column(column.name)]
    return st.sampled_from([each for exact in exacts for each in beside(exact, column.type)])


@st.composite
def terms(draw, schema, batch):
    column = draw(st.sampled_from([*schema.columns, *schema.key_columns[:1] * 3]))
    return draw(terms_about(column, batch))


@st.composite
def terms_about(draw, column, batch):
    exacts = exacts_of(batch, column)
    match draw(st.integers(0, 9)):
        case 0:
            return IsNull(column.name, column.type, draw(st.booleans()))
        case 1 | 2:
            return one_of(column, draw(st.lists(exacts, min_size=1, max_size=4)), draw(st.booleans()))
        case _:
            return compared(column, draw(st.sampled_from(Operator)), draw(exacts))


def trees(schema, batch):
    leaves = st.integers(0, 19).flatmap(
        lambda number: terms(schema, batch) if number else st.builds(Always, st.booleans())
    )

    def several(inner):
        return st.lists(inner, min_size=1, max_size=3)

    def grown(inner):
        return several(inner).map(all_of) | several(inner).map(any_of)

    return several(several(leaves).map(any_of)).map(all_of) | st.recursive(leaves, grown, max_leaves=10)


@given(st.data())
def test_no_row_that_a_predicate_selects_lies_outside(data):
    schema, batch = data.draw(tables())

    check_all_selected_are_within(Predicate(data.draw(trees(schema, batch))), schema, batch)


@pytest.mark.parametrize("name", EACH_TYPE)
@given(st.data())
def test_no_row_that_one_term_selects_lies_outside(name, data):
    schema = schema_of(name, "tinyint")
    batch = data.draw(near_rows(schema))
    term = data.draw(terms_about(schema.column("a"), batch))

    check_all_selected_are_within(Predicate(term), schema, batch)


# --- laws: what is bounded exactly


def equal_to(batch, row, columns):
    exacts = [exact_of_scalar(batch.column(column.name)[row], column.type) for column in columns]
    return [compared(column, Operator.EQUAL, exact) for column, exact in zip(columns, exacts, strict=True)]


def within(root, schema, batch):
    bounds = range_of_tree(root, schema)
    return [is_within(key, bounds) for key in KeyCodec(schema).encode(batch).to_pylist()]


@given(st.data())
def test_equal_first_columns_give_exactly_the_keys_that_start_with_the_prefix(data):
    schema, batch = data.draw(tables(min_key=2))
    count = data.draw(st.integers(1, len(schema.primary_key) - 1))
    row = data.draw(st.integers(0, batch.num_rows - 1))
    codec = KeyCodec(schema)
    prefix = codec.encode_prefix(batch, count)[row].as_py()
    terms = data.draw(st.permutations(equal_to(batch, row, schema.key_columns[:count])))

    inside = within(all_of(terms), schema, batch)

    assert inside == [key.startswith(prefix) for key in codec.encode(batch).to_pylist()]


@given(tables(), st.data())
def test_a_whole_key_gives_exactly_that_key(table, data):
    schema, batch = table
    row = data.draw(st.integers(0, batch.num_rows - 1))
    keys = KeyCodec(schema).encode(batch).to_pylist()

    inside = within(all_of(equal_to(batch, row, schema.key_columns)), schema, batch)

    assert inside == [key == keys[row] for key in keys]


@given(st.data())
def test_a_range_of_the_column_behind_equal_ones_is_exact(data):
    schema, batch = data.draw(tables())
    count = data.draw(st.integers(0, len(schema.primary_key) - 1))
    row = data.draw(st.integers(0, batch.num_rows - 1))
    column = schema.key_columns[count]
    operators = data.draw(st.lists(st.sampled_from(RANGES), min_size=1, max_size=3))
    ranges = [compared(column, operator, data.draw(exacts_of(batch, column))) for operator in operators]
    root = all_of([*equal_to(batch, row, schema.key_columns[:count]), *ranges])

    inside = within(root, schema, batch)

    assert inside == Predicate(root).mask(batch).tolist()


@pytest.mark.parametrize("behind", [[], ["int"]], ids=["last", "not last"])
@pytest.mark.parametrize("name", EACH_TYPE)
@given(st.data())
def test_ranges_of_a_first_column_are_exact_whatever_its_type(name, behind, data):
    schema = schema_of(name, *behind)
    column = schema.column("a")
    batch = data.draw(near_rows(schema))
    operators = data.draw(st.lists(st.sampled_from([*RANGES, Operator.EQUAL]), min_size=1, max_size=3))
    root = all_of([compared(column, operator, data.draw(exacts_of(batch, column))) for operator in operators])

    inside = within(root, schema, batch)

    assert inside == Predicate(root).mask(batch).tolist()


@given(st.data())
def test_more_conditions_never_widen_a_range(data):
    schema, batch = data.draw(tables())
    nodes = data.draw(st.lists(terms(schema, batch), min_size=1, max_size=4))
    bounds = range_of_tree(all_of(nodes), schema)

    narrower = range_of_tree(all_of([*nodes, data.draw(terms(schema, batch))]), schema)

    assert narrower is None or (bounds is not None and bounds[0] <= narrower[0] and narrower[1] <= bounds[1])
