"""Table options: read once, checked against the schema, and refused in words that help."""

import itertools

import pytest

from kolk.errors import InvalidSchema
from kolk.model.options import ChangelogImage, DeleteBehavior, MergeEngine, TableOptions
from kolk.model.schema import Column, Schema

COLUMNS = [
    Column("page", "string"),
    Column("pv", "bigint"),
    Column("seen", "timestamp(3)"),
    Column("ok", "boolean"),
]
KEYED = Schema(COLUMNS, primary_key="page")
LOG = Schema(COLUMNS)
ENGINE = "table.merge-engine"
VERSION = "table.merge-engine.versioned.ver-column"
DELETE = "table.delete.behavior"
IMAGE = "table.changelog.image"
TTL = "table.kv.ttl"
TTL_COLUMN = "table.kv.ttl.column"


def refusal(options: dict[str, str], schema: Schema = KEYED) -> str:
    """What the user is told."""
    with pytest.raises(InvalidSchema) as caught:
        TableOptions.parse(options, schema)
    return str(caught.value)


def test_a_table_with_a_key_merges_by_last_row_allows_deletes_and_logs_full_images():
    options = TableOptions.parse({}, KEYED)

    assert options == TableOptions(
        merge_engine=MergeEngine.DEFAULT,
        version_column=None,
        delete_behavior=DeleteBehavior.ALLOW,
        changelog_image=ChangelogImage.FULL,
    )


@pytest.mark.parametrize("engine", ["first_row", "versioned"])
def test_deletes_are_ignored_by_default_where_they_cannot_be_allowed(engine):
    version = {VERSION: "pv"} if engine == "versioned" else {}

    options = TableOptions.parse({ENGINE: engine} | version, KEYED)

    assert options.delete_behavior is DeleteBehavior.IGNORE


@pytest.mark.parametrize("engine", ["first_row", "versioned"])
def test_allow_does_not_go_with_first_row_or_versioned(engine):
    message = refusal({ENGINE: engine, VERSION: "pv", DELETE: "allow"})

    assert message == f"table.delete.behavior=allow does not go with the {engine} merge engine"


def test_values_are_read_in_any_case():
    options = TableOptions.parse({ENGINE: "FIRST_ROW", DELETE: "Disable", IMAGE: "WAL"}, KEYED)

    assert (options.merge_engine, options.delete_behavior) == (MergeEngine.FIRST_ROW, DeleteBehavior.DISABLE)
    assert options.changelog_image is ChangelogImage.WAL


@pytest.mark.parametrize("engine", ["default", "first_row", "versioned"])
def test_the_wal_image_goes_with_every_engine(engine):
    version = {VERSION: "pv"} if engine == "versioned" else {}

    options = TableOptions.parse({ENGINE: engine, IMAGE: "wal"} | version, KEYED)

    assert options.changelog_image is ChangelogImage.WAL


@pytest.mark.parametrize("data_type", ["int", "bigint", "timestamp(0)", "timestamp(9)", "timestamp_ltz(3)"])
def test_a_version_is_an_int_a_bigint_or_a_timestamp(data_type):
    schema = Schema([Column("id", "int"), Column("version", data_type)], "id")

    options = TableOptions.parse({ENGINE: "versioned", VERSION: "version"}, schema)

    assert options.version_column == "version"


def test_versioned_without_a_column_is_told_to_set_it():
    message = refusal({ENGINE: "versioned"})

    assert message == "table.merge-engine.versioned.ver-column must be set for versioned merge engine"


def test_versioned_by_an_unknown_column_is_told_the_columns():
    message = refusal({ENGINE: "versioned", VERSION: "nope"})

    assert message == "the version column 'nope' is not a column; they are page, pv, seen, ok"


def test_versioned_by_a_column_of_a_wrong_type_is_told_the_right_types():
    message = refusal({ENGINE: "versioned", VERSION: "ok"})

    assert message == ("the version column 'ok' is a boolean; it must be one of int, bigint, timestamp, timestamp_ltz")


@pytest.mark.parametrize("engine", [{}, {ENGINE: "first_row"}, {ENGINE: "default"}])
def test_a_version_column_without_the_versioned_engine_is_refused(engine):
    message = refusal(engine | {VERSION: "pv"})

    assert message == "table.merge-engine.versioned.ver-column goes with table.merge-engine=versioned only"


@pytest.mark.parametrize(
    "option",
    [
        {ENGINE: "first_row"},
        {VERSION: "pv"},
        {DELETE: "ignore"},
        {IMAGE: "full"},
        {TTL: "7d"},
        {TTL_COLUMN: "seen"},
    ],
)
def test_a_log_table_has_no_engine_no_deletes_no_images_and_no_rows_that_expire(option):
    message = refusal(option, LOG)

    assert message == f"{next(iter(option))} is only for tables with a primary key; this one has none"


def test_a_log_table_refuses_deletes():
    assert TableOptions.parse({}, LOG).delete_behavior is DeleteBehavior.DISABLE


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("table.merge-engin", ENGINE),
        ("table.merge_engine", ENGINE),
        ("table.delete.behaviour", DELETE),
        ("table.changelog-image", IMAGE),
        ("table.kv-ttl", TTL),
        ("table.kv.ttl.colum", TTL_COLUMN),
        ("bucket.number", "bucket.num"),
        ("bucket-key", "bucket.key"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest_one(wrong, right):
    assert refusal({wrong: "x"}) == f"unknown table option {wrong!r}; did you mean {right!r}?"


def test_an_option_like_no_other_is_answered_with_the_list():
    message = refusal({"zzz": "x"})

    assert message.startswith("unknown table option 'zzz'; the options are table.merge-engine, ")
    assert message.endswith("bucket.key, table.auto-partition.*")


def test_an_unknown_option_of_a_log_table_is_unknown_first():
    assert refusal({"table.merge-engin": "x"}, LOG).startswith("unknown table option")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {ENGINE: "last_row"},
            "table.merge-engine is one of default, first_row, versioned, aggregation, not 'last_row'",
        ),
        ({DELETE: ""}, "table.delete.behavior is one of allow, ignore, disable, not ''"),
        ({IMAGE: "half"}, "table.changelog.image is one of full, wal, not 'half'"),
        ({TTL: "soon"}, "table.kv.ttl is a duration such as 12h or 7d, or -1 for ever, not 'soon'"),
        ({TTL: "0d"}, "table.kv.ttl is a duration such as 12h or 7d, or -1 for ever, not '0d'"),
    ],
)
def test_an_unknown_value_is_answered_with_the_values(option, message):
    assert refusal(option) == message


def test_an_error_quotes_little_of_a_huge_key_or_value():
    assert len(refusal({"k" * 100_000: "x"})) < 500
    assert len(refusal({ENGINE: "v" * 100_000})) < 500


def _all_options() -> list[TableOptions]:
    choices = itertools.product(MergeEngine, DeleteBehavior, ChangelogImage)
    return [
        TableOptions(
            merge_engine=engine,
            version_column="seen" if engine is MergeEngine.VERSIONED else None,
            delete_behavior=behavior,
            changelog_image=image,
        )
        for engine, behavior, image in choices
        if engine in (MergeEngine.DEFAULT, MergeEngine.AGGREGATION) or behavior is not DeleteBehavior.ALLOW
        if engine is not MergeEngine.AGGREGATION or image is not ChangelogImage.WAL
    ]


@pytest.mark.parametrize("options", _all_options(), ids=lambda options: "-".join(options.text.values()))
def test_options_are_read_back_from_their_text(options):
    assert TableOptions.parse(options.text, KEYED) == options


def test_a_version_column_inside_the_primary_key_is_refused():
    schema = Schema([Column("id", "bigint"), Column("v", "bigint")], ["id"])
    options = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "id"}

    with pytest.raises(InvalidSchema, match="can never differ"):
        TableOptions.parse(options, schema)


# --- rows that expire


@pytest.mark.parametrize("data_type", ["timestamp(0)", "timestamp", "timestamp_ltz(9)", "date"])
def test_rows_expire_by_a_column_that_holds_a_time(data_type):
    schema = Schema([Column("id", "int"), Column("at", data_type)], "id")

    options = TableOptions.parse({TTL: "7 d", TTL_COLUMN: "at"}, schema)

    assert (options.kv_ttl_ms, options.kv_ttl_column) == (7 * 86_400_000, "at")


def test_the_time_may_be_part_of_the_key():
    schema = Schema([Column("id", "int"), Column("at", "date")], ["id", "at"])

    assert TableOptions.parse({TTL: "7d", TTL_COLUMN: "at"}, schema).kv_ttl_column == "at"


@pytest.mark.parametrize("options", [{}, {TTL: "-1"}, {TTL_COLUMN: "seen"}, {TTL: "-1", TTL_COLUMN: "seen"}])
def test_rows_live_for_ever_unless_told_otherwise(options):
    assert TableOptions.parse(options, KEYED).kv_ttl_ms is None


def test_a_ttl_without_a_column_is_told_to_name_it():
    assert refusal({TTL: "7d"}).startswith("table.kv.ttl needs table.kv.ttl.column, the column that holds a row's time")


@pytest.mark.parametrize("ttl", ["7d", "-1"])
def test_a_ttl_by_no_column_of_the_table_is_told_the_columns(ttl):
    message = refusal({TTL: ttl, TTL_COLUMN: "nope"})

    assert message == "table.kv.ttl.column: 'nope' is not a column; they are page, pv, seen, ok"


@pytest.mark.parametrize("data_type", ["bigint", "string", "time", "array<date>"])
def test_a_ttl_by_a_column_without_a_date_is_told_the_right_types(data_type):
    schema = Schema([Column("id", "int"), Column("at", data_type)], "id")

    message = refusal({TTL: "7d", TTL_COLUMN: "at"}, schema)

    assert message.endswith("; it must be one of timestamp, timestamp_ltz, date")


@pytest.mark.parametrize(
    "text", [{TTL: "90min", TTL_COLUMN: "seen"}, {TTL: "7d", TTL_COLUMN: "seen"}, {TTL_COLUMN: "seen"}]
)
def test_a_ttl_is_read_back_from_its_text(text):
    options = TableOptions.parse(text, KEYED)

    assert text.items() <= options.text.items()
    assert TableOptions.parse(options.text, KEYED) == options


def test_the_ttl_of_a_living_table_can_be_set_changed_and_turned_off():
    made = TableOptions.parse({TTL_COLUMN: "seen"}, KEYED)

    on = made.changed({TTL: "7d"}, KEYED)
    longer = on.changed({TTL: "8d"}, KEYED)
    off = longer.changed({TTL: "-1"}, KEYED)

    assert [each.kv_ttl_ms for each in (on, longer, off)] == [7 * 86_400_000, 8 * 86_400_000, None]
    assert off == made


def test_the_column_of_a_ttl_is_decided_when_a_table_is_made():
    made = TableOptions.parse({}, KEYED)

    with pytest.raises(InvalidSchema, match=r"table\.kv\.ttl\.column is decided when a table is made"):
        made.changed({TTL: "7d", TTL_COLUMN: "seen"}, KEYED)
    with pytest.raises(InvalidSchema, match=r"needs table\.kv\.ttl\.column"):
        made.changed({TTL: "7d"}, KEYED)
