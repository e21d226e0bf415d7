"""Automatic time partitions: the laws, at any moment and most of all where clocks are put back or forward."""

import dataclasses
import datetime

from hypothesis import given
from hypothesis import strategies as st
from tests.model.moments import moment

from kolk.model.auto_partition import KEEP_ALL, PRECREATE_MAX, RETENTION_MAX, AutoPartition, TimeUnit
from kolk.model.schema import Column, Schema
from kolk.model.types import Kind

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # at midnight
    "America/St_Johns",  # at 00:01, over midnight
    "America/Havana",  # back at 01:00, to midnight
    "Asia/Kathmandu",  # 05:45
    "Australia/Lord_Howe",  # by half an hour
    "Antarctica/Troll",  # by two hours
    "Africa/Casablanca",  # four times a year
    "Pacific/Apia",  # by a day
    "Pacific/Kwajalein",
]
CHANGES = [
    moment(text)
    for text in (
        "2026-03-29T01:00",  # Berlin, Troll
        "2026-10-25T01:00",
        "2026-03-08T07:00",  # New York
        "2026-11-01T06:00",
        "2018-11-04T03:00",  # Sao Paulo
        "2018-02-18T02:00",
        "2010-03-14T03:31",  # St. John's
        "2010-11-07T02:31",
        "2026-03-08T05:00",  # Havana
        "2026-11-01T05:00",
        "1985-12-31T18:30",  # Kathmandu
        "2026-10-03T15:30",  # Lord Howe
        "2026-04-04T15:00",
        "2026-02-15T02:00",  # Casablanca
        "2026-03-22T02:00",
        "2011-12-30T10:00",  # Apia
        "1993-08-21T12:00",  # Kwajalein
    )
]
HOUR_MS = 3_600_000
near_changes = st.builds(
    lambda change, minutes, ms: change + minutes * 60_000 + ms,
    st.sampled_from(CHANGES),
    st.integers(-3_000, 3_000),
    st.integers(-1, 1),
)
moments = near_changes | st.integers(moment("0002-01-03"), moment("9999-12-29"))
forms = st.sampled_from(
    [(kind, unit) for kind in (Kind.STRING, Kind.BIGINT) for unit in TimeUnit] + [(Kind.DATE, TimeUnit.DAY)]
)


@st.composite
def autos(draw: st.DrawFn) -> AutoPartition:
    """Any options; small numbers are the more likely."""
    kind, unit = draw(forms)
    return AutoPartition(
        key="k",
        kind=kind,
        unit=unit,
        zone=draw(st.sampled_from(ZONES)),
        precreate=draw(st.integers(1, 30)),
        retention=draw(st.integers(0, 30) | st.integers(0, RETENTION_MAX)),
        grace_ms=draw(st.integers(0, 10**12)),
    )


def ordered(auto: AutoPartition, values: list[str]) -> list[int | str]:
    """Numbers of fewer digits come first; texts have all the same."""
    return [int(value) for value in values] if auto.kind is Kind.BIGINT else list(values)


@given(autos(), st.integers(0, PRECREATE_MAX), st.integers(KEEP_ALL, RETENTION_MAX), st.booleans())
def test_options_are_read_back_from_their_text(auto, precreate, retention, zoned):
    columns = [Column("k", auto.kind.value), Column("v", "int")]
    auto = dataclasses.replace(auto, precreate=precreate, retention=retention, zone=auto.zone if zoned else None)

    assert AutoPartition.parse(auto.text, Schema(columns), ["k"]) == auto


@given(autos(), moments)
def test_a_period_starts_no_later_than_any_of_its_moments(auto, now_ms):
    assert auto.start_of(auto.value_at(now_ms)) <= now_ms


@given(autos(), moments)
def test_a_period_holds_its_start_and_not_the_moment_before(auto, now_ms):
    for value in auto.wanted(now_ms):
        start_ms = auto.start_of(value)

        assert auto.value_at(start_ms) == value
        assert auto.value_at(start_ms - 1) != value


@given(autos(), moments)
def test_what_is_wanted_begins_now_and_increases(auto, now_ms):
    values = auto.wanted(now_ms)
    starts = [auto.start_of(value) for value in values]

    assert values[0] == auto.value_at(now_ms)
    assert len(values) == auto.precreate or now_ms > moment("9960-01-01")
    assert ordered(auto, values) == sorted(set(ordered(auto, values)))
    assert starts == sorted(set(starts))


@given(autos(), near_changes)
def test_what_is_wanted_has_no_gap(auto, now_ms):
    auto = dataclasses.replace(auto, precreate=30)
    values = auto.wanted(now_ms)
    end_ms = auto.start_of(values[-1])

    shown = {auto.value_at(at_ms) for at_ms in range(now_ms, min(end_ms, now_ms + 800 * HOUR_MS), HOUR_MS // 2)}

    assert shown <= set(values) | {auto.value_at(now_ms - HOUR_MS * 24)}  # to where a clock may be put back
    assert shown >= {value for value in values if auto.start_of(value) < now_ms + 799 * HOUR_MS} - {values[-1]}


@given(autos(), moments)
def test_what_is_wanted_is_checked_and_not_expired(auto, now_ms):
    for value in auto.wanted(now_ms):
        auto.check(value)
        expires_ms = auto.expires_ms(value)
        assert expires_ms is None or expires_ms > now_ms


@given(autos(), moments)
def test_later_periods_expire_later(auto, now_ms):
    expiries = [auto.expires_ms(value) for value in auto.wanted(now_ms)]
    known = [expires_ms for expires_ms in expiries if expires_ms is not None]

    assert known == sorted(set(known))
    assert expiries == known + [None] * (len(expiries) - len(known))


@given(autos(), near_changes, st.integers(0, 30))
def test_as_many_past_periods_are_kept_as_retention_says(auto, now_ms, retention):
    auto = dataclasses.replace(auto, retention=retention, precreate=retention + 2)
    first, *kept, present = auto.wanted(now_ms)
    present_ms = auto.start_of(present)

    assert all(auto.expires_ms(value) > present_ms for value in kept)
    assert auto.expires_ms(first) <= present_ms + 2 * HOUR_MS  # a clock may go back over the beginning


@given(autos(), st.text("0123456789-", max_size=11) | st.text(max_size=11))
def test_any_text_is_a_value_or_is_none(auto, text):
    start_ms = auto.start_of(text)

    assert start_ms is None or auto.value_at(start_ms) == text


@given(autos(), st.dates())
def test_every_date_has_its_periods(auto, date: datetime.date):
    digits = f"{date:%m%d}12"
    text = f"{date.year:04}{digits}"[: auto.unit.digits]
    if auto.unit is TimeUnit.QUARTER:
        text = f"{date.year:04}{(date.month + 2) // 3}"
    value = {Kind.DATE: date.isoformat(), Kind.BIGINT: text.lstrip("0")}.get(auto.kind, text)

    start_ms = auto.start_of(value)

    skipped = auto.unit in (TimeUnit.HOUR, TimeUnit.DAY) and auto.zone.startswith("Pacific/")
    assert skipped or auto.value_at(start_ms) == value
