"""Automatic time partitions: options, values of periods, and what is wanted and expired at a moment."""

import pytest
from tests.model.moments import moment

from kolk.errors import InvalidRows, InvalidSchema
from kolk.model.auto_partition import AUTO_PARTITION_OPTIONS, KEEP_ALL, AutoPartition, TimeUnit
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind

ENABLED = "table.auto-partition.enabled"
KEY = "table.auto-partition.key"
UNIT = "table.auto-partition.time-unit"
ZONE = "table.auto-partition.time-zone"
PRECREATE = "table.auto-partition.num-precreate"
RETENTION = "table.auto-partition.num-retention"
GRACE = "table.auto-partition.expiry-grace"
SCHEMA = Schema(
    [
        Column("day", "string"),
        Column("short", "char(7)"),
        Column("date", "date"),
        Column("number", "int"),
        Column("large", "bigint"),
        Column("seen", "timestamp"),
        Column("country", "string"),
    ]
)


def made(options: dict[str, str] | None = None, *columns: str) -> AutoPartition:
    """Options in UTC unless they say otherwise, for a table partitioned by ``day`` or these columns."""
    found = AutoPartition.parse({ENABLED: "true", ZONE: "UTC"} | (options or {}), SCHEMA, columns or ("day",))
    assert found is not None
    return found


def refusal(options: dict[str, str], *columns: str) -> str:
    """What the user is told."""
    with pytest.raises(InvalidSchema) as caught:
        AutoPartition.parse({ENABLED: "true"} | options, SCHEMA, columns or ("day",))
    return str(caught.value)


# --- options


@pytest.mark.parametrize("options", [{}, {ENABLED: "false"}, {ENABLED: "FALSE"}, {"bucket.num": "3"}])
def test_partitions_do_not_follow_time_unless_they_are_told_to(options):
    assert AutoPartition.parse(options, SCHEMA, ["day"]) is None


def test_the_defaults_are_fluss_s():
    found = AutoPartition.parse({ENABLED: "true"}, SCHEMA, ["day"])

    assert found == AutoPartition(
        key="day", kind=Kind.STRING, unit=TimeUnit.DAY, zone=None, precreate=2, retention=7, grace_ms=3_600_000
    )


def test_words_are_read_in_any_case():
    assert made({ENABLED: "True", UNIT: "Quarter"}).unit is TimeUnit.QUARTER


@pytest.mark.parametrize("key", AUTO_PARTITION_OPTIONS[1:])
@pytest.mark.parametrize("disabled", [{}, {ENABLED: "false"}])
def test_an_option_that_would_do_nothing_is_refused(key, disabled):
    with pytest.raises(InvalidSchema) as caught:
        AutoPartition.parse(disabled | {key: "1"}, SCHEMA, ["day"])

    assert str(caught.value) == f"{key} does nothing here: set table.auto-partition.enabled=true or leave it out"


def test_a_table_without_partition_columns_is_refused():
    with pytest.raises(InvalidSchema, match="only for tables with partition columns; this one has none"):
        AutoPartition.parse({ENABLED: "true"}, SCHEMA, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({ENABLED: "yes"}, f"{ENABLED} is one of true, false, not 'yes'"),
        ({KEY: "country"}, f"{KEY}: 'country' is not a partition column; choose among day"),
        ({UNIT: "week"}, f"{UNIT} is one of hour, day, month, quarter, year, not 'week'"),
        ({ZONE: "Mars"}, "no time zone is named 'Mars'; use an IANA name such as 'Europe/Berlin' or 'UTC'"),
        ({PRECREATE: "1001"}, f"{PRECREATE} is a number from 0 to 1000, not '1001'"),
        ({PRECREATE: "-1"}, f"{PRECREATE} is a number from 0 to 1000, not '-1'"),
        ({PRECREATE: ""}, f"{PRECREATE} is a number from 0 to 1000, not ''"),
        ({RETENTION: "100001"}, f"{RETENTION} is a number from 0 to 100000, or -1 to keep all, not '100001'"),
        ({RETENTION: "-2"}, f"{RETENTION} is a number from 0 to 100000, or -1 to keep all, not '-2'"),
        ({RETENTION: "9" * 9999}, f"{RETENTION} is a number from 0 to 100000, or -1 to keep all, not '{'9' * 100}'"),
        ({GRACE: "soon"}, f"{GRACE} is a duration such as 10min or 1h, not 'soon'"),
    ],
)
def test_a_wrong_value_is_refused_with_the_right_ones(options, message):
    assert refusal(options) == message


def test_numbers_reach_their_limits():
    assert made({PRECREATE: "1000", RETENTION: "100000"}).precreate == 1_000
    assert made({PRECREATE: "0", RETENTION: "-1"}).retention == KEEP_ALL
    assert made({GRACE: "0s"}).grace_ms == 0


def test_with_several_partition_columns_the_one_of_time_is_named_and_nothing_is_made_ahead():
    found = made({KEY: "date"}, "country", "date")

    assert (found.key, found.kind, found.precreate) == ("date", Kind.DATE, 0)
    assert found.wanted(moment("2026-11-15")) == []
    assert found.expires_ms("2026-11-15") == moment("2026-11-23")
    assert refusal({}, "country", "day") == f"{KEY} must say which of the partition columns country, day holds the time"
    assert refusal({KEY: "day", PRECREATE: "1"}, "country", "day") == (
        f"{PRECREATE} is only for tables with one partition column: this one has country, day, and nobody knows the"
        " values of the others ahead; leave it out"
    )


def test_a_column_that_cannot_hold_the_values_is_refused():
    assert refusal({UNIT: "month"}, "date") == (
        f"{UNIT}=month does not go with 'date', which is a date; set it to day, or make 'date' a string"
    )
    assert refusal({}, "short") == (
        f"'short' is a char(7), too short for {UNIT}=day, whose values are such as 20261115; make it char(8) or string"
    )
    assert refusal({}, "seen") == (
        "'seen' is a timestamp(6); a partition column that holds the time is a string, char, date, int or bigint"
    )
    assert made({UNIT: "month"}, "short").kind is Kind.CHAR


def test_the_zone_that_was_not_said_is_filled_in_and_the_one_that_was_stays():
    unsaid = AutoPartition.parse({ENABLED: "true"}, SCHEMA, ["day"])

    assert unsaid is not None
    assert ZONE not in unsaid.text
    assert unsaid.in_zone("Asia/Tokyo").text[ZONE] == "Asia/Tokyo"
    assert made().in_zone("Asia/Tokyo").zone == "UTC"
    with pytest.raises(InvalidSchema, match="no time zone is named 'Mars'"):
        unsaid.in_zone("Mars")


def test_the_text_shows_every_option_and_enabled_first():
    assert made({UNIT: "HOUR", GRACE: "90min"}).text == {
        ENABLED: "true",
        KEY: "day",
        UNIT: "hour",
        ZONE: "UTC",
        PRECREATE: "2",
        RETENTION: "7",
        GRACE: "90min",
    }
    assert tuple(made().text) == AUTO_PARTITION_OPTIONS


# --- values


@pytest.mark.parametrize(
    ("column", "unit", "value", "start"),
    [
        ("day", "hour", "2026111514", "2026-11-15T14:00"),
        ("day", "day", "20261115", "2026-11-15"),
        ("day", "month", "202611", "2026-11-01"),
        ("day", "quarter", "20264", "2026-10-01"),
        ("day", "year", "2026", "2026-01-01"),
        ("date", "day", "2026-11-15", "2026-11-15"),
        ("number", "hour", "2026111514", "2026-11-15T14:00"),
        ("large", "day", "20261115", "2026-11-15"),
    ],
)
def test_a_value_is_the_time_cut_off_at_the_unit(column, unit, value, start):
    auto = made({UNIT: unit}, column)

    assert auto.value_at(moment("2026-11-15T14:59:59.999")) == value
    assert auto.start_of(value) == moment(start)


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        ("hour", "2026111524"),
        ("day", "20260229"),
        ("day", "2026-11-15"),
        ("day", "2026111"),
        ("day", "٢٠٢٦١١١٥"),
        ("day", " 2026111"),
        ("month", "202613"),
        ("quarter", "20265"),
        ("quarter", "20260"),
        ("year", "0000"),
        ("year", ""),
    ],
)
def test_what_is_no_value_of_the_unit_starts_and_expires_never(unit, value):
    auto = made({UNIT: unit})

    assert auto.start_of(value) is None
    assert auto.expires_ms(value) is None
    with pytest.raises(InvalidRows):
        auto.check(value)


@pytest.mark.parametrize("value", ["20261115", "2026-1115", "2026-11-31", "26-11-15", "2026-11-15T00"])
def test_a_date_is_an_iso_date(value):
    assert made({}, "date").start_of(value) is None


@pytest.mark.parametrize("value", ["020261115", "-20261115", "+20261115", "20261115.0", "0"])
def test_a_number_has_no_other_form(value):
    assert made({}, "large").start_of(value) is None


def test_a_wrong_value_is_refused_with_a_right_one():
    with pytest.raises(InvalidRows) as caught:
        made({UNIT: "hour"}).check("2026-11-15")

    assert str(caught.value) == "the partition column 'day' holds an hour such as 2026111514, not '2026-11-15'"


def test_a_value_can_be_checked_before_there_is_a_zone():
    unsaid = AutoPartition.parse({ENABLED: "true"}, SCHEMA, ["day"])

    assert unsaid is not None
    unsaid.check("20261115")
    with pytest.raises(InvalidRows, match="a day such as 20261115"):
        unsaid.check("today")


# --- wanted and expired


def test_the_present_and_the_following_are_wanted():
    assert made({PRECREATE: "3"}).wanted(moment("2024-11-11T09:30")) == ["20241111", "20241112", "20241113"]
    assert made({UNIT: "quarter"}).wanted(moment("2024-11-11")) == ["20244", "20251"]
    assert made({UNIT: "month", PRECREATE: "3"}).wanted(moment("2024-11-11")) == ["202411", "202412", "202501"]


def test_besides_the_present_as_many_past_periods_are_kept_as_retention_says():
    auto, now_ms = made({RETENTION: "3"}), moment("2024-11-11T09:30")
    values = ["20241106", "20241107", "20241108", "20241109", "20241110", "20241111"]

    expired = [value for value in values if auto.expires_ms(value) <= now_ms]

    assert expired == ["20241106", "20241107"]
    assert auto.expires_ms("20241107") == moment("2024-11-11")


def test_nothing_expires_where_all_is_kept():
    assert made({RETENTION: "-1"}).expires_ms("20241107") is None


# --- zones


def test_days_begin_at_midnight_of_the_zone():
    auto = made({ZONE: "Asia/Tokyo"})

    assert auto.value_at(moment("2026-11-15T14:59:59.999")) == "20261115"
    assert auto.value_at(moment("2026-11-15T15:00")) == "20261116"
    assert auto.start_of("20261116") == moment("2026-11-16T00:00+09:00")


def test_an_hour_that_is_shown_twice_is_one_period():
    auto = made({ZONE: "Europe/Berlin", UNIT: "hour", RETENTION: "0"})

    hours = [auto.value_at(moment(f"2026-10-25T0{hour}:30")) for hour in range(3)]

    assert hours == ["2026102502", "2026102502", "2026102503"]
    assert auto.start_of("2026102502") == moment("2026-10-25T00:00")
    assert auto.expires_ms("2026102502") == moment("2026-10-25T02:00")


def test_an_hour_that_is_skipped_is_no_period_but_expires_if_somebody_made_it():
    auto = made({ZONE: "Europe/Berlin", UNIT: "hour", RETENTION: "0", PRECREATE: "3"})

    assert auto.wanted(moment("2026-03-29T00:30")) == ["2026032901", "2026032903", "2026032904"]
    assert auto.start_of("2026032902") is None
    assert auto.expires_ms("2026032902") == moment("2026-03-29T01:00")
    with pytest.raises(InvalidRows, match="clocks skip this hour in Europe/Berlin"):
        auto.check("2026032902")


@pytest.mark.parametrize(("retention", "hour"), [("0", "03:00"), ("1", "04:00"), ("2", "05:00")])
def test_a_skipped_hour_does_not_count_as_kept(retention, hour):
    auto = made({ZONE: "Europe/Berlin", UNIT: "hour", RETENTION: retention})

    assert auto.expires_ms("2026032901") == moment(f"2026-03-29T{hour}+02:00")


def test_the_longest_retention_counts_the_skipped_hours_of_all_its_years():
    # 100,001 hours are 4,166 days and 17 hours; clocks skip an hour in each of the springs from 2015 to 2026.
    auto = made({ZONE: "Europe/Berlin", UNIT: "hour", RETENTION: "100000"})

    assert auto.expires_ms("2015010100") == moment("2026-05-29T17:00+02:00") + 12 * 3_600_000


def test_a_day_that_is_skipped_is_no_period():
    samoa = made({ZONE: "Pacific/Apia"})

    assert samoa.wanted(moment("2011-12-30T05:00")) == ["20111229", "20111231"]
    assert samoa.start_of("20111230") is None


@pytest.mark.parametrize(
    ("zone", "unit", "value", "start"),
    [
        ("America/Sao_Paulo", "day", "20181104", "2018-11-04T01:00-02:00"),  # 00:00 is skipped
        ("America/Toronto", "day", "19190331", "1919-03-31T00:30-04:00"),  # 23:30 to 00:30 is skipped
        ("Australia/Lord_Howe", "hour", "2026100402", "2026-10-04T02:30+11:00"),  # half an hour is skipped
    ],
)
def test_a_period_whose_begin_is_skipped_starts_where_the_clock_goes_on(zone, unit, value, start):
    assert made({ZONE: zone, UNIT: unit}).start_of(value) == moment(start)


def test_a_day_does_not_expire_while_the_clock_can_still_go_back_to_it():
    # At 00:01 on Sunday clocks in Newfoundland were put back to 23:01 on Saturday.
    auto = made({ZONE: "America/St_Johns", RETENTION: "0"})

    days = [auto.value_at(moment(text)) for text in ("2010-11-07T02:30:30", "2010-11-07T02:40", "2010-11-07T03:31")]

    assert days == ["20101107", "20101106", "20101107"]
    assert auto.start_of("20101107") == moment("2010-11-07T00:00-02:30")
    assert auto.expires_ms("20101106") == moment("2010-11-07T00:00-03:30")


# --- the ends of time


@pytest.mark.parametrize("unit", [unit.value for unit in TimeUnit])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
@pytest.mark.parametrize("column", ["day", "number", "large"])
def test_the_ends_of_time_raise_nothing(unit, zone, column):
    auto = made({UNIT: unit, ZONE: zone, RETENTION: "100000"}, column)

    first, last = auto.value_at(-(10**18)), auto.value_at(10**18)

    assert auto.value_at(auto.start_of(first)) == first
    assert auto.value_at(auto.start_of(last)) == last
    assert auto.wanted(10**18) == [last]
    assert auto.expires_ms(last) is None
    assert auto.wanted(-(10**18))[0] == first


def test_the_ends_of_time_are_the_years_1_and_9999():
    auto = made()

    assert (auto.value_at(-(10**18)), auto.value_at(10**18)) == ("00010101", "99991231")


def test_hours_in_an_int_end_where_ints_do():
    auto = made({UNIT: "hour"}, "number")

    assert auto.value_at(moment("2500-01-01")) == "2147123123"
    assert auto.start_of("2148010100") is None
    assert made({UNIT: "hour"}, "large").start_of("2148010100") == moment("2148-01-01")
