"""Nested types: their text and their Arrow form, there and back, and what they refuse."""

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidInput, InvalidName, InvalidSchema, InvalidStatement
from kolk.model.ddl import parse
from kolk.model.schema import COLUMNS_MAX, Column, Schema
from kolk.model.table import TableSpec
from kolk.model.types import FIELDS_MAX, NESTING_MAX, DataType, Field, Kind
from kolk.testing.strategies import data_types

nested_types = data_types().filter(lambda type: type.is_nested)


def within(kind: str, depth: int) -> str:
    """A type nested so deep: ``array<array<int>>`` is nested 2 deep."""
    opening = {"array": "array<", "map": "map<int, ", "row": "row<a "}[kind]
    return opening * depth + "int" + ">" * depth


def arrow_within(depth: int) -> pa.DataType:
    arrow = pa.int32()
    for _ in range(depth):
        arrow = pa.list_(arrow)
    return arrow


@given(nested_types)
def test_a_nested_type_is_read_back_from_its_text_and_from_its_ddl(data_type):
    assert DataType.parse(str(data_type)) == data_type
    assert DataType.parse(data_type.ddl) == data_type


@given(nested_types)
def test_the_arrow_form_of_a_nested_type_is_kept_by_the_way_there_and_back(data_type):
    assert DataType.from_arrow(data_type.arrow).arrow == data_type.arrow


@given(nested_types, st.integers(0, 200), st.text(max_size=2))
def test_a_nested_type_with_a_slip_in_its_text_is_a_type_or_an_invalid_schema(data_type, place, junk):
    text = str(data_type)
    place %= len(text)

    with contextlib.suppress(InvalidSchema):
        read = DataType.parse(text[:place] + junk + text[place + 1 :])

        assert DataType.parse(str(read)) == read


@pytest.mark.parametrize(
    ("text", "written", "arrow"),
    [
        ("array<int>", "array<int>", pa.list_(pa.int32())),
        ("Array<Int Not Null>", "array<int not null>", pa.list_(pa.field("item", pa.int32(), nullable=False))),
        ("map<string,long>", "map<string, bigint>", pa.map_(pa.string(), pa.int64())),
        ("map<string not null, int>", "map<string, int>", pa.map_(pa.string(), pa.int32())),
        ("struct<x: double, Y:int>", "row<x double, Y int>", pa.struct([("x", pa.float64()), ("Y", pa.int32())])),
        ('row<"a-b" int>', "row<`a-b` int>", pa.struct([("a-b", pa.int32())])),
        ("array<array<array<int>>>", "array<array<array<int>>>", pa.list_(pa.list_(pa.list_(pa.int32())))),
    ],
)
def test_a_nested_type_has_one_text_and_one_arrow_form(text, written, arrow):
    data_type = DataType.parse(text)

    assert str(data_type) == written
    assert data_type.arrow.equals(arrow, check_metadata=True)


@pytest.mark.parametrize(
    "arrow",
    [
        pa.large_list(pa.int32()),
        pa.list_view(pa.int32()),
        pa.large_list_view(pa.int32()),
        pa.list_(pa.int32(), 3),
        pa.list_(pa.field("element", pa.int32(), metadata={"a": "b"})),
        pa.dictionary(pa.int8(), pa.list_(pa.int32())),
    ],
    ids=str,
)
def test_every_kind_of_arrow_list_is_an_array(arrow):
    assert str(DataType.from_arrow(arrow)) == "array<int>"


def test_the_ddl_of_a_nested_type_keeps_the_case_of_its_fields():
    assert DataType.parse("row<aB array<int not null>>").ddl == "ROW<aB ARRAY<INT NOT NULL>>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("array", "array is written with the types it is made of: array<t>"),
        ("array<int", "found the end of the text, expected '(', NOT or '>'"),
        ("array<int>>", "found '>', expected the end of the type"),
        ("map<int>", "found '>', expected '(', NOT or ','"),
        ("row<>", "found '>', expected a field name"),
        ("array<varchar(3)>", "line 1, column 7: unknown column type 'varchar(3)'"),
        ("map<array<int>, int>", "array<int> cannot be the key of a map; use a scalar type"),
        ("map<float, int>", "float cannot be the key of a map: NaN and -0.0"),
        ("row<a int, A int>", "the fields of a row must differ in more than case: A, a"),
        ("row<`a b` int>", "'a b' is not a field name"),
        ("row<__a int>", "'__a' is not a field name"),
    ],
)
def test_a_nested_type_that_is_none_is_refused_with_the_reason(text, message):
    with pytest.raises(InvalidSchema) as caught:
        DataType.parse(text)

    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["array", "map", "row"])
def test_types_are_nested_so_deep_and_no_deeper(kind):
    assert DataType.parse(within(kind, NESTING_MAX)).depth == NESTING_MAX

    for text in (within(kind, NESTING_MAX + 1), within(kind, 500), within(kind, 10_000)):
        with pytest.raises(InvalidSchema, match="at most 16 deep"):
            DataType.parse(text)


def test_arrow_types_are_nested_so_deep_and_no_deeper():
    assert DataType.from_arrow(arrow_within(NESTING_MAX)).depth == NESTING_MAX

    with pytest.raises(InvalidSchema, match="at most 16 deep"):
        DataType.from_arrow(arrow_within(NESTING_MAX + 1))
    with pytest.raises(InvalidSchema, match="at most 16 deep"):
        DataType(Kind.ARRAY, fields=(Field("item", DataType.from_arrow(arrow_within(NESTING_MAX))),))


def test_a_type_has_so_many_fields_and_no_more():
    def text(fields: int) -> str:
        return f"row<{', '.join(f'a{place} int' for place in range(fields))}>"

    assert DataType.parse(text(FIELDS_MAX)).size == FIELDS_MAX
    with pytest.raises(InvalidSchema, match="at most 1000 fields"):
        DataType.parse(text(FIELDS_MAX + 1))
    with pytest.raises(InvalidSchema, match="at most 1000 fields"):
        DataType.parse(f"array<{text(FIELDS_MAX)}>")
    with pytest.raises(InvalidSchema, match="at most 1000 fields"):
        DataType.from_arrow(pa.struct([(f"a{place}", pa.int32()) for place in range(5_000)]))


def test_the_longest_type_there_can_be_is_read_back_from_its_text():
    names = [f"{'-x' * 98}{place:04}"[-200:].replace("-x", "x-", 1) for place in range(FIELDS_MAX)]
    fields = tuple(Field(name, DataType.parse("timestamp_ltz(9)"), nullable=False) for name in names)
    longest = DataType(Kind.ROW, fields=fields)

    assert DataType.parse(str(longest)) == longest
    assert len(longest.shown) < 200


@pytest.mark.parametrize("text", [f"row<{'x' * 1_000_000} int>", f"row<{'x' * 10_000} int>", "array<" * 200_000])
def test_a_huge_type_text_is_refused_in_few_words(text):
    with pytest.raises(InvalidSchema) as caught:
        DataType.parse(text)

    assert len(str(caught.value)) < 500


def test_the_columns_of_a_table_count_with_their_fields():
    wide = Column("a", "row<" + ", ".join(f"a{place} int" for place in range(FIELDS_MAX)) + ">")
    rest = COLUMNS_MAX - FIELDS_MAX

    Schema([wide, *(Column(f"b{place}", "int") for place in range(rest - 1))])
    with pytest.raises(InvalidSchema, match="at most 1600 columns and fields of nested types together"):
        Schema([wide, *(Column(f"b{place}", "int") for place in range(rest))])


@pytest.mark.parametrize("text", ["array<int>", "map<string, int>", "row<a int>"])
def test_a_nested_column_is_no_key_no_bucket_key_and_no_version(text):
    id, nested = Column("id", "int"), Column("a", text)

    with pytest.raises(InvalidSchema, match=r"'a' is a .*> and cannot be a primary key: nested values have no order"):
        Schema([nested], "a")
    with pytest.raises(InvalidSchema, match=r"bucket.key: 'a' is a .*>, and nested values are not hashed"):
        TableSpec.make("t", Schema([nested]), buckets=1, bucket_key=["a"])
    with pytest.raises(InvalidSchema, match=r"the version column 'a' is a .*>; it must be one of int, bigint"):
        TableSpec.make(
            "t",
            Schema([id, nested], "id"),
            merge_engine="versioned",
            options={"table.merge-engine.versioned.ver-column": "a"},
        )


@pytest.mark.parametrize(
    ("definition", "kind", "message"),
    [
        ("a ARRAY<INT", InvalidStatement, "line 1, column 28: found ')', expected '(', NOT or '>'"),
        ("a MAP<ARRAY<INT>, INT>", InvalidSchema, "line 1, column 19: array<int> cannot be the key of a map"),
        ("a ROW<b ROW<c INT, C INT>>", InvalidSchema, "line 1, column 25: the fields of a row must differ"),
        ("a ROW<`-` INT>", InvalidName, "line 1, column 23: '-' is not a field name"),
        ("a ROW<b INT COMMENT 'x'>", InvalidStatement, "line 1, column 29: found 'COMMENT', expected '(', NOT, ','"),
        ("a " + within("array", 20), InvalidSchema, "arrays, maps and rows stand at most 16 deep"),
    ],
)
def test_a_statement_with_a_nested_type_that_is_none_points_at_it(definition, kind: type[InvalidInput], message):
    with pytest.raises(kind) as caught:
        parse(f"CREATE TABLE t ({definition})")

    assert message in str(caught.value).splitlines()[0]
