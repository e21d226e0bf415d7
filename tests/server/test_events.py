"""The log: one line per event, for machines or people, without secrets, without rows, and without end to a flood."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import Corrupted, InternalError, InvalidRows
from kolk.runtime.secret import Secret
from kolk.server.events import TEXT_LENGTH_MAX, Events, log_to
from kolk.testing.clock import ManualClock

ID = "0123456789abcdef"
TOKEN = f"kolk_{ID}_{'5eed' * 16}"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Log:
    """A logger of its own, and what it wrote."""

    def __init__(self, stream, level=logging.INFO):
        self.stream = stream
        self.logger = logging.Logger("test")
        log_to(stream, self.logger, level)
        self.clock = ManualClock(now_ms=1_794_744_000_123)
        self.events = Events(self.logger, self.clock, rate_per_second=3)

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()

    @property
    def objects(self):
        return [json.loads(line) for line in self.lines]

    def count(self, name):
        return sum(line["event"] == name for line in self.objects)


@pytest.fixture
def log():
    return Log(io.StringIO())


@pytest.fixture
def terminal():
    return Log(Terminal())


def test_an_event_is_one_json_object_on_one_line(log):
    log.events.event("server.started", url="kolk://127.0.0.1:9123", tables=3, tls=False, drained=None, ratio=0.5)

    assert log.stream.getvalue().endswith("}\n")
    assert log.objects == [
        {
            "ts": "2026-11-15T12:00:00.123Z",
            "level": "info",
            "event": "server.started",
            "url": "kolk://127.0.0.1:9123",
            "tables": 3,
            "tls": False,
            "drained": None,
            "ratio": 0.5,
        }
    ]


def test_at_a_terminal_an_event_is_a_line_of_text(terminal):
    terminal.events.event("server.started", logging.WARNING, url="kolk://h:1", why="two words", nothing="")

    assert terminal.lines == [
        '2026-11-15T12:00:00.123Z WARNING server.started url=kolk://h:1 why="two words" nothing=""'
    ]


@given(st.text(alphabet=st.characters(), max_size=50))
def test_no_value_can_break_out_of_its_line(value):
    for stream in (io.StringIO(), Terminal()):
        log = Log(stream)
        log.events.event("x", value=value)
        assert stream.getvalue().count("\n") == 1
        assert len(log.lines) == 1
        assert "\x1b" not in log.lines[0]


def test_a_long_value_is_cut(log):
    log.events.event("x", value="v" * 1_000_000)

    assert len(log.objects[0]["value"]) == TEXT_LENGTH_MAX + 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_has_not_is_a_text(log, value):
    log.events.event("x", value=value)

    assert log.objects[0]["value"] == str(value)


def test_events_below_the_level_are_not_written(log):
    log.events.event("x", logging.DEBUG)

    assert log.lines == []


def test_the_fields_of_the_line_itself_cannot_be_given(log):
    with pytest.raises(AssertionError):
        log.events.event("x", ts=1)


# Floods.


def test_a_flood_of_one_event_is_cut_and_counted(log):
    for _ in range(10):
        log.events.rate_limited("auth.failed", peer="10.0.0.1")
    assert log.count("auth.failed") == 3

    log.clock.advance(seconds=1)
    log.events.rate_limited("auth.failed", peer="10.0.0.1")

    assert [line["event"] for line in log.objects[3:]] == ["events.dropped", "auth.failed"]
    assert log.objects[3] | {"ts": ""} == {
        "ts": "",
        "level": "warning",
        "event": "events.dropped",
        "name_of": "auth.failed",
        "count": 7,
    }


def test_a_flood_of_one_event_does_not_silence_another(log):
    for _ in range(10):
        log.events.rate_limited("auth.failed")
    log.events.rate_limited("access.denied")

    assert log.count("access.denied") == 1


def test_what_was_dropped_is_told_at_the_end_and_once(log):
    for _ in range(5):
        log.events.rate_limited("limit.hit")

    log.events.flush()
    log.events.flush()
    log.clock.advance(seconds=1)
    log.events.rate_limited("limit.hit")

    assert [line.get("count") for line in log.objects if line["event"] == "events.dropped"] == [2]


@given(st.lists(st.integers(0, 1_500), max_size=60))
def test_every_event_is_written_or_counted(pauses):
    log = Log(io.StringIO())
    for pause in pauses:
        log.clock.advance(ms=pause)
        log.events.rate_limited("auth.failed")
    log.events.flush()

    dropped = sum(line["count"] for line in log.objects if line["event"] == "events.dropped")
    assert log.count("auth.failed") + dropped == len(pauses)


# Secrets.


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_token_reaches_the_log_by_any_way(stream):
    log = Log(stream())
    log.events.event("x", token=TOKEN, header=f"Bearer {TOKEN}", wrapped=Secret("hunter2"), cut="v" * 990 + TOKEN)
    log.events.event(f"bad name {TOKEN}")
    log.logger.warning("got %s", TOKEN)
    log.logger.warning("got %(token)s", {"token": TOKEN})
    log.logger.warning("got %s and %s", TOKEN)
    log.logger.warning("a stack", stack_info=True, extra={"token": TOKEN})
    try:
        try:
            raise KeyError(TOKEN)
        except KeyError as error:
            raise ValueError(f"Authorization: Bearer {TOKEN}") from error
    except ValueError as error:
        log.logger.error("failed with %s", error, exc_info=True)
        log.events.event("y", logging.ERROR, error=error)
        log.events.event("z", logging.ERROR, error=Corrupted(f"file of {TOKEN}"))

    written = log.stream.getvalue()
    assert "5eed" not in written
    assert "hunter2" not in written
    assert "ValueError" in written
    assert "KeyError" in written
    assert f"kolk_{ID}_***" in written


def test_a_handler_of_somebody_else_sees_the_masked_record_too(log):
    other = io.StringIO()
    log.logger.addHandler(logging.StreamHandler(other))

    log.logger.error("got %s", TOKEN, exc_info=ValueError(TOKEN))

    assert "5eed" not in other.getvalue()


def test_a_traceback_stays_in_its_json_line(log):
    log.logger.error("it failed", exc_info=ValueError("two\nlines"))

    assert "ValueError: two\nlines" in log.objects[0]["exception"]


def test_a_traceback_at_a_terminal_is_indented_below_its_line(terminal):
    terminal.logger.error("it failed", exc_info=ValueError("two\nlines \x1b[2J \ud800"))

    assert terminal.lines[1:] == ["    ValueError: two", r'    "lines \u001b[2J \ud800"']


# Rows.


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_the_text_of_an_error_that_may_quote_a_row_is_left_out(log):
    for error in (InvalidRows("row 3: 'planted' is no number"), ValueError("'planted'"), InternalError("'planted'")):
        log.events.event("put.failed", error=raised(error))

    assert "planted" not in log.stream.getvalue()
    assert [line["error"] for line in log.objects] == ["InvalidRows", "ValueError", "InternalError"]


def test_an_error_that_nobody_foresaw_shows_where_it_came_from(log):
    log.events.event("call.failed", error=raised(ZeroDivisionError()))

    assert log.objects[0]["frames"].endswith(" raised")
    assert "server/test_events.py:" in log.objects[0]["frames"]


def test_an_error_of_the_system_keeps_its_text_and_a_wrapped_one_its_cause(log):
    log.events.event("disk.failed", error=OSError(28, "No space left on device"))
    wrapped = InternalError("?")
    wrapped.__cause__ = raised(MemoryError())
    log.events.event("call.failed", error=wrapped)

    assert log.objects[0]["error_text"] == "[Errno 28] No space left on device"
    assert log.objects[1]["cause"] == "MemoryError"
    assert log.objects[1]["frames"]
