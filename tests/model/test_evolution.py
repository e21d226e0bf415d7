"""What may be done to a living table's schema, and precisely what may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.table import decode_table, encode_table
from kolk.errors import InvalidName, InvalidSchema
from kolk.model.evolution import (
    AddColumn,
    DropColumn,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    altered,
    is_wider,
)
from kolk.model.schema import SCHEMA_ID_MAX, Column, Schema
from kolk.model.table import TableSpec
from kolk.model.types import DataType
from kolk.testing.evolutions import evolved, table_of
from kolk.testing.strategies import data_types, schemas

COLUMNS = [
    Column("page", "string"),
    Column("day", "date"),
    Column("pv", "int"),
    Column("title", "char(4)", nullable=False),
    Column("price", "decimal(6, 2)"),
]
PAGES = TableSpec.make("web.pages", Schema(COLUMNS, ["page", "day"]), bucket_key=["page"], buckets=4)
EVENTS = TableSpec.make("events", Schema(COLUMNS), bucket_key=["pv"], buckets=4)
SEEN = TableSpec.make(
    "seen",
    Schema(COLUMNS, ["page"]),
    merge_engine="versioned",
    options={"table.merge-engine.versioned.ver-column": "pv"},
)
AGED = TableSpec.make("aged", Schema(COLUMNS, ["page"]), options={"table.kv.ttl": "7d", "table.kv.ttl.column": "day"})
PARTED = TableSpec.make(
    "parted", Schema([Column("day", "int", nullable=False), *COLUMNS[2:]]), partition_by=["day"], buckets=2
)


def names(spec: TableSpec) -> list[str]:
    return list(spec.schema.names)


def refusal(spec: TableSpec, *operations: object) -> str:
    with pytest.raises(InvalidSchema) as caught:
        altered(spec, operations)
    return str(caught.value)


# --- what may be


def test_an_added_column_stands_at_the_end_or_where_it_is_told_to():
    added = Column("x", "bigint")

    assert names(altered(PAGES, [AddColumn(added)]))[-1] == "x"
    assert names(altered(PAGES, [AddColumn(added, first=True)]))[0] == "x"
    assert names(altered(PAGES, [AddColumn(added, after="day")])) == ["page", "day", "x", "pv", "title", "price"]


def test_an_id_is_never_used_again_whatever_was_dropped():
    once = altered(PAGES, [AddColumn(Column("x", "int")), DropColumn("x"), DropColumn("price")])
    again = altered(once, [AddColumn(Column("x", "int"))])

    assert once.schema.next_column_id == 6
    assert again.schema.column("x").id == 6
    assert decode_table(table_of(once).id, encode_table(table_of(once))).spec == once


def test_all_operations_of_an_alter_are_one_version_and_see_each_other():
    spec = altered(
        PAGES,
        [
            RenameColumn("pv", "views"),
            WidenColumn("views", "bigint"),
            DropColumn("title"),
            AddColumn(Column("title", "string", nullable=False, default="none"), after="views"),
            MoveColumn("price", first=True),
        ],
    )

    assert spec.schema.id == 2
    assert names(spec) == ["price", "page", "day", "views", "title"]
    assert [column.id for column in spec.schema.columns] == [4, 0, 1, 2, 5]
    assert spec.schema.column("views").type == DataType.parse("bigint")


def test_a_name_follows_everywhere_when_a_column_is_renamed():
    key = altered(PAGES, [RenameColumn("page", "url")])
    version = altered(SEEN, [RenameColumn("pv", "at"), WidenColumn("at", "bigint")])
    log = altered(EVENTS, [RenameColumn("pv", "views")])
    aged = altered(AGED, [RenameColumn("day", "at"), AddColumn(Column("day", "int"))])

    assert (key.schema.primary_key, key.bucket_key) == (("url", "day"), ("url",))
    assert version.options.version_column == "at"
    assert version.option_text["table.merge-engine.versioned.ver-column"] == "at"
    assert log.bucket_key == ("views",)
    assert (aged.options.kv_ttl_column, aged.option_text["table.kv.ttl.column"]) == ("at", "at")
    assert decode_table(table_of(aged).id, encode_table(table_of(aged))) == table_of(aged)


def test_a_column_may_change_the_case_of_its_own_name():
    assert names(altered(PAGES, [RenameColumn("pv", "PV")]))[2] == "PV"


def test_names_may_be_swapped_through_a_third():
    spec = altered(PAGES, [RenameColumn("pv", "t"), RenameColumn("price", "pv"), RenameColumn("t", "price")])

    assert {name: spec.schema.column(name).id for name in ("pv", "price")} == {"pv": 4, "price": 2}


def test_the_last_column_outside_the_key_may_go():
    spec = TableSpec.make("t", Schema([Column("k", "int"), Column("a", "int")], "k"))

    assert names(altered(spec, [DropColumn("a")])) == ["k"]


def test_a_column_may_be_null_from_some_version_on():
    assert altered(PAGES, [DropNotNull("title")]).schema.column("title").nullable


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tinyint", "smallint"), ("tinyint", "bigint"), ("smallint", "int"), ("int", "bigint"), ("float", "double"),
        ("decimal(6, 2)", "decimal(7, 2)"), ("decimal(6, 2)", "decimal(38, 2)"), ("char(2)", "char(3)"),
        ("char(2)", "string"),
    ],
)  # fmt: skip
def test_a_type_is_widened_to_one_that_holds_all_its_values(old, new):
    spec = TableSpec.make("t", Schema([Column("k", "int"), Column("a", old)], "k"))

    assert str(altered(spec, [WidenColumn("a", new)]).schema.column("a").type) == new


@pytest.mark.parametrize(
    ("old", "new", "possible"),
    [
        ("bigint", "int", "it can become nothing else"),
        ("int", "double", "it can become bigint"),
        ("tinyint", "string", "smallint or int or bigint"),
        ("double", "float", "nothing else"),
        ("decimal(6, 2)", "decimal(5, 2)", "with p from 7 to 38"),
        ("decimal(6, 2)", "decimal(8, 3)", "decimal(p, 2)"),
        ("char(4)", "char(2)", "a longer char or string"),
        ("string", "char(9)", "nothing else"),
        ("timestamp(3)", "timestamp(6)", "nothing else"),
        ("array<int>", "array<bigint>", "nothing else"),
    ],
)
def test_what_does_not_hold_all_values_is_refused_with_what_would(old, new, possible):
    spec = TableSpec.make("t", Schema([Column("k", "int"), Column("a", old)], "k"))

    message = refusal(spec, WidenColumn("a", new))

    assert "cannot become" in message
    assert possible in message


# --- what may not


@pytest.mark.parametrize(
    ("spec", "operation", "message"),
    [
        (PAGES, DropColumn("page"), "part of the primary key.*cannot be dropped.*make a new table"),
        (PAGES, WidenColumn("day", "timestamp"), "part of the primary key.*cannot be widened"),
        (PAGES, DropNotNull("page"), "primary key, which is never null"),
        (EVENTS, DropColumn("pv"), "part of the bucket key.*cannot be dropped"),
        (EVENTS, WidenColumn("pv", "bigint"), "part of the bucket key.*cannot be widened.*renamed and moved"),
        (SEEN, DropColumn("pv"), "is the version column.*cannot be dropped"),
        (AGED, DropColumn("day"), "table.kv.ttl.column, which holds the time of every row; it cannot be dropped"),
        (AGED, WidenColumn("day", "timestamp"), "cannot become a timestamp"),
        (PARTED, DropColumn("day"), "partition column; it cannot be dropped"),
        (PARTED, RenameColumn("day", "d"), "partition column; it cannot be renamed"),
        (PARTED, WidenColumn("day", "bigint"), "partition column; it cannot be widened"),
        (PARTED, DropNotNull("day"), "partition column, which is never null"),
        (PAGES, AddColumn(Column("x", "int", nullable=False)), "NOT NULL and has no default.*give it a default"),
        (PAGES, AddColumn(Column("PV", "int")), "there is a column 'pv' already"),
        (PAGES, AddColumn(Column("x", "int"), after="nowhere"), "there is no column 'nowhere'; the columns are page"),
        (PAGES, AddColumn(Column("_log_offset", "int")), "the changelog has a column of that name"),
        (PAGES, DropColumn("nothing"), "there is no column 'nothing'"),
        (PAGES, RenameColumn("pv", "title"), "there is a column 'title' already"),
        (PAGES, RenameColumn("pv", "pv"), "changes nothing"),
        (PAGES, WidenColumn("pv", "int"), "is a int already"),
        (PAGES, DropNotNull("pv"), "may be null already"),
        (PAGES, MoveColumn("pv", after="pv"), "cannot stand after itself"),
        (PAGES, MoveColumn("page", first=True), "changes nothing"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(spec, operation, message):
    with pytest.raises(InvalidSchema, match=message):
        altered(spec, [operation])


def test_the_only_column_of_a_log_table_stays():
    spec = TableSpec.make("t", Schema([Column("a", "int")]))

    assert "the only column" in refusal(spec, DropColumn("a"))


def test_an_operation_that_cannot_be_leaves_the_others_undone():
    refusal(PAGES, AddColumn(Column("x", "int")), DropColumn("page"))

    assert names(PAGES) == ["page", "day", "pv", "title", "price"]


def test_roles_are_kept_under_new_names_within_the_same_alter():
    assert "primary key" in refusal(PAGES, RenameColumn("page", "p"), DropColumn("p"))
    assert "version column" in refusal(SEEN, RenameColumn("pv", "v"), DropColumn("v"))
    assert "table.kv.ttl.column" in refusal(AGED, RenameColumn("day", "at"), DropColumn("at"))


def test_an_alter_has_operations_and_not_too_many():
    assert "1 to 1,600" in refusal(PAGES)
    assert "this one has 1,601" in refusal(PAGES, *[RenameColumn("pv", f"x{n}") for n in range(1601)])


def test_a_schema_has_so_many_versions_and_no_more():
    last = Schema(COLUMNS, ["page"], id=SCHEMA_ID_MAX)

    assert "65,535 versions" in refusal(TableSpec.make("t", last), DropColumn("pv"))
    assert altered(TableSpec.make("t", Schema(COLUMNS, ["page"], id=SCHEMA_ID_MAX - 1)), [DropColumn("pv")])


def test_values_that_are_no_operation_are_refused_when_they_are_made():
    with pytest.raises(InvalidSchema, match="first or after"):
        AddColumn(Column("x", "int"), first=True, after="pv")
    with pytest.raises(InvalidSchema, match="where is 'pv' to stand"):
        MoveColumn("pv")
    with pytest.raises(InvalidSchema, match=r"kolk\.Column is added"):
        AddColumn("x")
    with pytest.raises(InvalidName):
        altered(PAGES, [RenameColumn("pv", "../x")])


# --- laws


@given(st.data())
def test_ids_only_grow_and_stay_with_their_columns(data):
    spec = TableSpec.make("t", data.draw(schemas()))
    seen = set(spec.schema.by_id)

    for _ in range(4):
        before = spec
        _, spec = data.draw(evolved(spec, data_types(max_depth=1)))
        fresh = set(spec.schema.by_id) - set(before.schema.by_id)

        assert not fresh & seen
        assert spec.schema.next_column_id > max(spec.schema.by_id)
        assert spec.schema.id == before.schema.id + 1
        assert [spec.schema.column(name).id for name in spec.schema.primary_key] == [
            before.schema.column(name).id for name in before.schema.primary_key
        ]
        assert decode_table(table_of(spec).id, encode_table(table_of(spec))).spec == spec
        seen |= fresh


@given(data_types(max_depth=1), data_types(max_depth=1), data_types(max_depth=1))
def test_wider_is_an_order(a, b, c):
    assert not is_wider(a, a)
    assert not (is_wider(a, b) and is_wider(b, a))
    if is_wider(a, b) and is_wider(b, c):
        assert is_wider(a, c)
