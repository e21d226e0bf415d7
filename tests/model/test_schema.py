"""A schema is checked when it is made, so whoever holds one may trust it."""

import dataclasses

import pyarrow as pa
import pytest

from kolk.errors import InvalidName, InvalidRows, InvalidSchema
from kolk.model.schema import COLUMNS_MAX, PRIMARY_KEY_COLUMNS_MAX, Column, Schema
from kolk.model.types import DataType, Kind

PAGE = Column("page", "string")
PV = Column("pv", "bigint")


def test_a_column_takes_its_type_as_text_or_as_a_value():
    assert Column("pv", "bigint") == Column("pv", DataType(Kind.BIGINT))


@pytest.mark.parametrize("name", ["", "../x", "a b", "__offset", "-a", "ｐv", "a\0", "a" * 201])
def test_a_column_with_a_hostile_name_is_refused(name):
    with pytest.raises(InvalidName):
        Column(name, "int")


def test_columns_get_ids_in_order():
    schema = Schema([PAGE, PV])

    assert [column.id for column in schema.columns] == [0, 1]


def test_given_ids_are_kept_and_new_ones_come_after_them():
    schema = Schema([Column("a", "int", id=5), Column("b", "int"), Column("c", "int", id=2)])

    assert [column.id for column in schema.columns] == [5, 6, 2]


def test_primary_key_columns_are_never_null():
    schema = Schema([PAGE, PV], primary_key="page")

    assert [column.nullable for column in schema.columns] == [False, True]


def test_a_primary_key_of_one_column_may_be_given_as_text():
    assert Schema([PAGE, PV], "page") == Schema([PAGE, PV], ["page"])


def test_key_columns_stand_in_key_order_and_value_columns_in_schema_order():
    schema = Schema([Column(name, "int") for name in "abcd"], primary_key=["d", "b"])

    assert [column.name for column in schema.key_columns] == ["d", "b"]
    assert [column.name for column in schema.value_columns] == ["a", "c"]


def test_a_column_is_found_by_name():
    schema = Schema([PAGE, PV])

    assert schema.column("pv").type == DataType(Kind.BIGINT)


def test_asking_for_an_unknown_column_lists_the_columns():
    with pytest.raises(InvalidRows, match="there is no column 'nope'; the columns are page, pv"):
        Schema([PAGE, PV]).column("nope")


def test_the_arrow_form_has_types_and_nullability():
    schema = Schema([PAGE, PV], "page")

    assert schema.arrow == pa.schema([pa.field("page", pa.string(), nullable=False), pa.field("pv", pa.int64())])


def test_a_schema_is_read_back_from_arrow():
    schema = Schema([PAGE, Column("price", "decimal(10, 2)", False), Column("seen", "timestamp_ltz(3)")], "page")

    assert Schema.from_arrow(schema.arrow, "page") == schema


def test_an_arrow_schema_with_a_hostile_name_is_refused():
    with pytest.raises(InvalidName):
        Schema.from_arrow(pa.schema([("../x", pa.int32())]))


def test_a_schema_without_columns_is_refused():
    with pytest.raises(InvalidSchema, match="a table has 1 to 1600 columns, this one has 0"):
        Schema([])


def test_the_most_columns_are_accepted_and_one_more_is_not():
    columns = [Column(f"c{number}", "int") for number in range(COLUMNS_MAX + 1)]

    assert len(Schema(columns[:-1]).columns) == COLUMNS_MAX
    with pytest.raises(InvalidSchema, match="a table has 1 to 1600 columns, this one has 1601"):
        Schema(columns)


def test_the_widest_primary_key_is_accepted_and_a_wider_one_is_not():
    columns = [Column(f"c{number}", "int") for number in range(PRIMARY_KEY_COLUMNS_MAX + 1)]
    names = [column.name for column in columns]

    assert len(Schema(columns, names[:-1]).key_columns) == PRIMARY_KEY_COLUMNS_MAX
    with pytest.raises(InvalidSchema, match="a primary key has at most 32 columns"):
        Schema(columns, names)


def test_column_names_given_twice_are_named():
    with pytest.raises(InvalidSchema, match="column names must differ; given twice: a, b"):
        Schema([Column(name, "int") for name in "abcab"])


def test_column_ids_given_twice_are_refused():
    with pytest.raises(InvalidSchema, match="column ids must differ"):
        Schema([Column("a", "int", id=1), Column("b", "int", id=1)])


def test_a_primary_key_that_names_a_column_twice_is_refused():
    with pytest.raises(InvalidSchema, match="the primary key names a column twice"):
        Schema([PAGE], ["page", "page"])


def test_a_primary_key_of_an_unknown_column_lists_the_columns():
    with pytest.raises(InvalidSchema, match="the primary key column 'id' is not a column; they are page, pv"):
        Schema([PAGE, PV], "id")


@pytest.mark.parametrize("data_type", ["float", "double"])
def test_a_float_primary_key_is_refused_with_the_reason_and_a_way_out(data_type):
    with pytest.raises(InvalidSchema) as caught:
        Schema([Column("x", data_type)], "x")

    assert str(caught.value) == (
        f"'x' is a {data_type} and cannot be a primary key: NaN and -0.0 have no one identity;"
        " use a decimal or a bigint"
    )


def test_a_float_column_outside_the_key_is_fine():
    assert Schema([PAGE, Column("x", "double")], "page").column("x").type.is_floating


def test_a_schema_shows_itself_as_ddl_would():
    assert str(Schema([PAGE, PV], "page")) == "(page string NOT NULL, pv bigint, PRIMARY KEY (page))"
    assert str(Schema([PAGE])) == "(page string)"


def test_schemas_and_columns_are_frozen():
    schema = Schema([PAGE])

    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.primary_key = ("page",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.columns[0].name = "x"


def test_column_names_must_differ_in_more_than_case():
    with pytest.raises(InvalidSchema, match="more than case"):
        Schema([Column("page", "string"), Column("Page", "string")])


@pytest.mark.parametrize("name", ["_bucket", "_log_offset", "_Change_Type"])
def test_the_names_of_the_change_columns_are_taken(name):
    with pytest.raises(InvalidSchema, match="taken"):
        Schema([Column("id", "int"), Column(name, "int")], "id")


def test_an_arrow_type_is_a_column_type_and_nothing_else_is():
    assert Column("a", pa.int64()).type == DataType.parse("bigint")
    for wrong in (None, 5, int, pa.list_(pa.uint8())):
        with pytest.raises(InvalidSchema):
            Column("a", wrong)


@pytest.mark.parametrize(
    "arguments", [(5,), ([("a", "int")],), ([Column("a", "int")], 5), ([Column("a", "int")], [["a"]]), (None,)]
)
def test_a_schema_of_other_things_is_refused(arguments):
    with pytest.raises(InvalidSchema):
        Schema(*arguments)


def test_an_arrow_schema_is_given_its_aggregates_by_name():
    arrow = pa.schema([("k", pa.int8()), ("a", pa.int8())])

    assert str(Schema.from_arrow(arrow, "k", agg={"a": "sum"}).column("a").agg) == "sum"
    with pytest.raises(InvalidSchema, match="agg names 'b', which is not a column; they are k, a"):
        Schema.from_arrow(arrow, "k", agg={"b": "sum"})
    with pytest.raises(InvalidSchema, match="from_arrow takes"):
        Schema.from_arrow(None)
