"""Spans of time, as people write them."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidArgument
from kolk.model.durations import duration_text, milliseconds, seconds_of


@pytest.mark.parametrize(
    ("text", "ms"),
    [("7d", 604_800_000), ("7 D", 604_800_000), ("10min", 600_000), ("10m", 600_000), ("5 s", 5_000), ("20ms", 20)],
)
def test_text_is_a_number_and_a_unit(text, ms):
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "1.5h", "7 days ago", "9999999999999d", "٣d"])
def test_everything_else_is_none(text):
    assert milliseconds(text) is None


@given(st.integers(1, 10**12))
def test_what_is_written_is_read_back(ms):
    assert milliseconds(duration_text(ms)) == ms


def test_an_argument_is_text_seconds_or_a_timedelta():
    assert seconds_of("10m", "x") == seconds_of(600, "x") == seconds_of(datetime.timedelta(minutes=10), "x") == 600
    with pytest.raises(InvalidArgument, match="x is a duration"):
        seconds_of(None, "x")
