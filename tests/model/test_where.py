"""Predicates, case by case: what the text means, its one text, and what is refused."""

import math
from datetime import date

import pyarrow as pa
import pytest

from kolk.errors import InvalidArgument
from kolk.model.predicate import Predicate
from kolk.model.schema import Column, Schema
from kolk.model.where import NESTING_MAX, TERMS_MAX, TEXT_LENGTH_MAX, VALUES_MAX

SCHEMA = Schema(
    [
        Column("n", "bigint"),
        Column("tiny", "tinyint"),
        Column("f", "float"),
        Column("d", "double"),
        Column("price", "decimal(5, 2)"),
        Column("s", "string"),
        Column("b", "bytes"),
        Column("b2", "binary(2)"),
        Column("date", "date"),
        Column("t", "time(2)"),
        Column("ts", "timestamp"),
        Column("ts9", "timestamp(9)"),
        Column("seen", "timestamp_ltz"),
        Column("flag", "boolean"),
        Column("items", "array<int>"),
        Column("and", "int"),
        Column("a-b", "int"),
        Column("x", "int"),
    ]
)


def parse(text: str) -> Predicate:
    return Predicate.parse(text, SCHEMA)


def selected(text: str, column: str, values: list) -> list:
    """Those of the values of one column that the text selects."""
    array = pa.array(values, SCHEMA.column(column).type.arrow)
    mask = parse(text).mask(pa.record_batch({column: array}))
    return [value for value, is_selected in zip(values, mask.tolist(), strict=True) if is_selected]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("n == 5", "n = 5"),
        ("n != 5", "n <> 5"),
        ("5 < n", "n > 5"),
        ("-5>=n", "n <= -5"),
        ("n in (1, +2, 1)", "n IN (1, 2)"),
        ("n IN (1)", "n = 1"),
        ("n NOT IN (1)", "n <> 1"),
        ("n between 1 AND 3", "n >= 1 AND n <= 3"),
        ("NOT n BETWEEN 1 AND 3 AND s IS NULL", "(n < 1 OR n > 3) AND s IS NULL"),
        ("NOT (n = 1 OR NOT (s <= 'a' AND flag))", "n <> 1 AND s <= 'a' AND flag = TRUE"),
        ("NOT flag", "flag = FALSE"),
        ("TRUE = flag", "flag = TRUE"),
        ("n = 1 OR n = 2 AND s = 'x'", "n = 1 OR n = 2 AND s = 'x'"),
        ("(n = 1 OR (n = 2)) AND ((s = 'x'))", "(n = 1 OR n = 2) AND s = 'x'"),
        ("items IS NOT NULL", "items IS NOT NULL"),
        ("NOT items IS NOT NULL", "items IS NULL"),
        ("n = 1 OR TRUE", "TRUE"),
        ("n = 1 AND NOT TRUE", "FALSE"),
        ("s = 'it''s'", "s = 'it''s'"),
        ("b = x'00FF'", "b = X'00ff'"),
        ("x = 1 -- a column of that name", "x = 1"),
        ("date = DATE '2026-11-15'", "date = '2026-11-15'"),
        ("ts >= DATE '2026-11-15'", "ts >= '2026-11-15 00:00:00'"),
        ("ts = TIMESTAMP '2026-11-15T12:30'", "ts = '2026-11-15 12:30:00'"),
        ("seen = TIMESTAMP_LTZ '2026-11-15 12:30:00.25 +01:00'", "seen = '2026-11-15 11:30:00.25Z'"),
        ("t = TIME '12:30:00.10'", "t = '12:30:00.1'"),
        ("price = '1.50'", "price = 1.5"),
        ("d = 1e2", "d = 100.0"),
        ("f = .1", "f = 0.1"),
        ('`and` = 1 AND "a-b" = 2', "`and` = 1 AND `a-b` = 2"),
    ],
)
def test_a_predicate_has_one_text_and_is_read_back_from_it(text, written):
    predicate = parse(text)

    assert str(predicate) == written
    assert parse(written) == predicate
    assert hash(parse(written)) == hash(predicate)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("n > 1.5", "n > 1"),
        ("n >= 1.5", "n > 1"),
        ("n < 1.5", "n <= 1"),
        ("n < -1.5", "n <= -2"),
        ("n = 1.5", "FALSE"),
        ("n <> 1.5", "n IS NOT NULL"),
        ("NOT n = 1.5", "n IS NOT NULL"),
        ("n = 1e0", "n = 1"),
        ("n IN (1.5, 7, 1e30)", "n = 7"),
        ("n NOT IN (1.5, 1e30)", "n IS NOT NULL"),
        ("tiny < 1000", "tiny <= 127"),
        ("tiny > 1000", "tiny > 127"),
        ("tiny > -1000", "tiny IS NOT NULL"),
        ("tiny < -1000", "FALSE"),
        ("tiny = 1000", "FALSE"),
        ("price = 1.005", "FALSE"),
        ("price <= 1.005", "price <= 1"),
        ("price < 1e9", "price <= 999.99"),
        ("b2 > X'010203'", "b2 > X'0102'"),
        ("b2 < X'01'", "b2 <= X'00ff'"),
        ("b2 < X''", "FALSE"),
        ("t < '12:00:00.555'", "t <= '12:00:00.55'"),
        ("ts9 < '2500-01-01'", "ts9 <= '2262-04-11 23:47:16.854775807'"),
        ("ts9 < '1500-01-01'", "FALSE"),
        ("f < 1e39", "f <= 3.4028235e+38"),
        ("d > -1e400", "d > '-Infinity'"),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_still_answered_right(text, written):
    assert str(parse(text)) == written


def test_null_is_never_selected_unless_it_is_asked_for():
    values = [1, None, 3]

    assert selected("n = 1", "n", values) == [1]
    assert selected("n <> 1", "n", values) == [3]
    assert selected("NOT n = 1", "n", values) == [3]
    assert selected("n NOT IN (1, 2)", "n", values) == [3]
    assert selected("n IS NULL", "n", values) == [None]
    assert selected("NOT (n = 1 AND n IS NULL)", "n", values) == [1, 3]
    assert selected("NOT (n = 1 OR n IS NULL)", "n", values) == [3]


def test_nan_is_equal_to_itself_and_greater_than_all():
    values = [-math.inf, -0.0, 0.0, 1.0, math.inf, math.nan, None]

    def shown(text: str) -> list[str]:
        return [str(value) for value in selected(text, "d", values)]

    assert shown("d = 'NaN'") == shown("d >= 'nan'") == shown("d > 'Infinity'") == shown("d IN ('NaN')") == ["nan"]
    assert shown("d > 'NaN'") == []
    assert shown("d > 1") == ["inf", "nan"]
    assert shown("d < 'NaN'") == shown("d <> 'NaN'") == ["-inf", "-0.0", "0.0", "1.0", "inf"]
    assert shown("d <= 'NaN'") == ["-inf", "-0.0", "0.0", "1.0", "inf", "nan"]
    assert shown("d <> 1") == ["-inf", "-0.0", "0.0", "inf", "nan"]
    assert shown("d = 0") == shown("d = -0.0") == shown("d IN (-0.0, 7)") == ["-0.0", "0.0"]
    assert shown("d NOT IN (0, 'NaN', 7)") == ["-inf", "1.0", "inf"]
    assert shown("d IN (1, 'NaN')") == ["1.0", "nan"]


def test_every_nan_is_found_whatever_its_bits():
    bits = [0x7FF8000000000000, 0x7FF8000000000001, -0x0008000000000000]
    batch = pa.record_batch({"d": pa.array(bits, pa.int64()).view(pa.float64())})

    assert parse("d IN (1, 'NaN')").mask(batch).all()
    assert parse("d = 'NaN'").mask(batch).all()


def test_text_that_says_nan_is_text():
    assert selected("s = 'NaN'", "s", ["NaN", "x", None]) == ["NaN"]
    assert selected("s >= 'NaN'", "s", ["NaN", "x", "A"]) == ["NaN", "x"]


def test_a_number_for_a_float_is_the_nearest_float():
    assert selected("f = 0.1", "f", [pa.scalar(0.1, pa.float32()).as_py()]) != []
    assert parse("f = 0.1") == parse("f = 0.100000001490116119384765625")


def test_a_predicate_names_the_columns_it_needs():
    assert parse("n = 1 OR s = 'x' AND n IS NULL").columns == ("n", "s")
    assert parse("TRUE").columns == ()


def test_what_may_match_is_decided_by_the_columns_that_are_known():
    known = pa.record_batch({"s": ["eu", "us", None], "n": pa.array([1, 2, 3], pa.int64())})

    assert parse("s = 'eu' AND d > 5").may_match(known).tolist() == [True, False, False]
    assert parse("NOT (s = 'eu' OR d > 5)").may_match(known).tolist() == [False, True, False]
    assert parse("s = 'eu' OR d > 5").may_match(known).tolist() == [True, True, True]
    assert parse("s IS NULL AND n IN (2, 3) AND d IS NULL").may_match(known).tolist() == [False, False, True]
    assert parse("FALSE").may_match(known).tolist() == [False] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found the end of the text, expected NOT, '\\(' or a column or a value"),
        ("n = 1 n", "found 'n', expected AND, OR or the end of the text"),
        ("(n = 1", "expected AND, OR or '\\)'"),
        ("n", "expected IS, NOT, IN, BETWEEN"),
        ("n = s", "a column is compared with a value; text stands in 'single quotes'"),
        ('s = "eu"', "text stands in 'single quotes'"),
        ("n = NULL", "write IS NULL or IS NOT NULL"),
        ("n IN (1, NULL)", "write IS NULL or IS NOT NULL"),
        ("n IN ()", "found '\\)', expected a value"),
        ("n NOT = 1", "found '=', expected IN or BETWEEN"),
        ("1 = 1", "expected a column"),
        ("1 = and", "expected a column"),
        ("and = 1", "found 'and', expected"),
        ("1", "expected '=', '!', '<', '>' or a comparison"),
        ("N = 1", "there is no column 'N'; the columns are n, tiny"),
        ("items = 1", "array<int>; only IS NULL and IS NOT NULL"),
        ("n = 'x'", "line 1, column 5: the column is of type bigint; compare it with a number"),
        ("n = TRUE", "of type bigint"),
        ("flag = 1", "of type boolean; compare it with TRUE or FALSE"),
        ("s = 1", "of type string; compare it with text"),
        ("b = 'x'", "such as X'00ff'"),
        ("b = X'0'", "such as X'00ff'"),
        ("d = '1.5'", "a number, 'NaN'"),
        ("price = 'much'", "a number, such as 9.99"),
        ("price = DATE '2026-11-15'", "a number, such as 9.99"),
        ("date = '2026-02-30'", "no such day"),
        ("date = '2026-11-15 12:00:00'", "a day, such as"),
        ("t = '24:00:00'", "no time of a day"),
        ("ts = '2026-11-15 12:00:00Z'", "a time without a zone"),
        ("ts = TIMESTAMP_LTZ '2026-11-15 12:00:00Z'", "a time without a zone"),
        ("seen = '2026-11-15 12:00:00'", "a time with its zone"),
        ("seen = '0001-01-01 00:00:00+01:00'", "within the years 1 to 9999"),
        ("seen = '2026-01-01 00:00:00+19:00'", "the zone \\+19:00"),
        ("ts = '2026-11-15 12:00:00.1234567890'", "at most 9 digits"),
        ("s = 'x", "no closing '"),
        ("s = '\ud800'", "half a surrogate pair"),
        ("n > 1e1000", "at most 3 digits"),
        (f"n > {'1' * 101}", "at most 100 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text, message):
    with pytest.raises(InvalidArgument, match=message) as raised:
        parse(text)

    assert str(raised.value).startswith("the predicate cannot be read: line 1, column ")


def test_a_predicate_is_text():
    with pytest.raises(InvalidArgument, match="a predicate is text"):
        Predicate.parse(5, SCHEMA)


def test_a_text_that_is_too_long_is_refused():
    fits = "n = 1".ljust(TEXT_LENGTH_MAX)

    assert str(parse(fits)) == "n = 1"
    with pytest.raises(InvalidArgument, match="at most 262,144 are read"):
        parse(fits + " ")


def test_a_text_that_would_be_too_long_as_we_write_it_is_refused():
    first = date(2000, 1, 1).toordinal()
    days = ",".join(f"'{date.fromordinal(first + day)}'" for day in range(VALUES_MAX))
    text = f"ts IN ({days}) OR s = '"

    with pytest.raises(InvalidArgument, match="as Kolk writes it"):  # a day alone is shorter than the time it means
        parse(f"{text}{'x' * (TEXT_LENGTH_MAX - len(text) - 1)}'")


def test_too_many_comparisons_are_refused():
    most = " OR ".join(["n = 1"] * TERMS_MAX)

    assert parse(most).columns == ("n",)
    with pytest.raises(InvalidArgument, match="at most 1,000 comparisons"):
        parse(f"{most} OR n = 2")
    with pytest.raises(InvalidArgument, match="at most 1,000 comparisons"):
        parse(" OR ".join(["n BETWEEN 1 AND 2"] * (TERMS_MAX // 2 + 1)))


def test_too_many_values_are_refused():
    most = ", ".join(map(str, range(VALUES_MAX)))

    assert selected(f"n IN ({most})", "n", [VALUES_MAX - 1, VALUES_MAX]) == [VALUES_MAX - 1]
    for text in (f"n IN ({most}, 1)", f"n IN ({most}) OR x IN (1)"):
        with pytest.raises(InvalidArgument, match=r"at most 10,?000"):
            parse(text)


def test_too_deep_a_nesting_is_refused():
    deepest = "n = 0"
    for depth in range(NESTING_MAX):
        deepest = f"n = 1 {'AND' if depth % 2 else 'OR'} ({deepest})"

    assert parse(str(parse(deepest))) == parse(deepest)
    assert str(parse("NOT " * NESTING_MAX + "n = 1")) == "n = 1"
    for text in (f"n = 2 AND ({deepest})", "NOT " * (NESTING_MAX + 1) + "n = 1", "(" * 5_000):
        with pytest.raises(InvalidArgument, match="at most 32 deep"):
            parse(text)


def test_the_deepest_nesting_is_read_back_even_when_it_ends_in_not_between():
    deepest = "n NOT BETWEEN 1 AND 2 AND n = 1"
    for depth in range(NESTING_MAX - 1):
        deepest = f"n = 1 {'AND' if depth % 2 else 'OR'} ({deepest})"

    assert parse(str(parse(deepest))) == parse(deepest)
    with pytest.raises(InvalidArgument, match="at most 32 deep"):
        parse(f"n = 1 OR ({deepest})")


def test_a_predicate_is_for_the_columns_it_was_made_for():
    predicate = parse("n = 1 AND s IS NULL")

    predicate.check(SCHEMA)
    for other in (Schema([Column("n", "bigint")]), Schema([Column("n", "int"), Column("s", "string")])):
        with pytest.raises(InvalidArgument, match="get the table anew"):
            predicate.check(other)
