"""Clocks on the wall: zones by name, and times that are shown twice or never."""

import contextlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.moments import moment

from kolk.errors import InvalidSchema
from kolk.model.wall_clock import passed_ms, reached_ms, wall_at, zone_named

BERLIN = zone_named("Europe/Berlin")
SRC = Path(__file__).resolve().parents[2] / "src"
WITHOUT_ZONE_DATA = """
import sys
sys.modules["tzdata"] = None
from kolk.model.wall_clock import zone_named
assert zone_named("UTC").utcoffset(None).total_seconds() == 0
try:
    zone_named("Europe/Berlin")
except ValueError as error:
    sys.exit(str(error))
"""


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("Europe/Berlim", "did you mean 'Europe/Berlin'?"),
        ("utc", "did you mean 'UTC'?"),
        ("", "use an IANA name such as 'Europe/Berlin' or 'UTC'"),
        ("+02:00", "use an IANA name such as 'Europe/Berlin' or 'UTC'"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_one(name, advice):
    with pytest.raises(InvalidSchema) as caught:
        zone_named(name)

    assert str(caught.value) == f"no time zone is named {name!r}; {advice}"


@pytest.mark.parametrize(
    "name", ["../UTC", "/etc/localtime", "Europe", "localtime", "right/UTC", "posixrules", "x" * 9999]
)
def test_a_path_is_no_zone_nor_is_what_differs_by_machine(name):
    with pytest.raises(InvalidSchema, match="no time zone is named"):
        zone_named(name)


@given(st.text(max_size=300))
def test_any_other_text_is_only_refused(name):
    with contextlib.suppress(InvalidSchema):
        zone_named(name)


def test_a_machine_without_zone_data_knows_utc_and_says_what_to_install():
    environment = {"PYTHONTZPATH": "", "PYTHONPATH": str(SRC)}

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ZONE_DATA], env=environment, capture_output=True, text=True, timeout=60
    )

    assert "it knows UTC alone: install the Python package tzdata" in done.stderr


def test_a_clock_shows_the_time_of_its_zone():
    assert wall_at(BERLIN, moment("2026-01-15T12:00")) == wall("2026-01-15T13:00")
    assert wall_at(BERLIN, moment("2026-07-15T12:00")) == wall("2026-07-15T14:00")


def test_what_is_shown_twice_is_reached_at_the_first_time_and_passed_at_the_second():
    shown = wall("2026-10-25T02:30")

    assert reached_ms(BERLIN, shown) == moment("2026-10-25T02:30+02:00")
    assert passed_ms(BERLIN, shown) == moment("2026-10-25T02:30+01:00")


def test_a_clock_put_back_to_a_time_does_not_fall_below_it():
    shown = wall("2026-10-25T02:00")

    assert passed_ms(BERLIN, shown) == reached_ms(BERLIN, shown) == moment("2026-10-25T02:00+02:00")


def test_what_is_never_shown_is_reached_and_passed_when_the_clock_is_put_forward():
    shown = wall("2026-03-29T02:30")

    assert reached_ms(BERLIN, shown) == passed_ms(BERLIN, shown) == moment("2026-03-29T01:00")


@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"])
def test_clocks_stand_still_before_the_first_year_and_after_the_last(name):
    zone = zone_named(name)

    assert wall_at(zone, -(10**18)) == wall("0001-01-01")
    assert wall_at(zone, 10**18) == wall("9999-12-31T23:59:59.999")


@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"])
@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59:59.999"])
def test_the_first_and_the_last_moment_are_shown(name, text):
    zone, shown = zone_named(name), wall(text)

    assert wall_at(zone, reached_ms(zone, shown)) == shown
