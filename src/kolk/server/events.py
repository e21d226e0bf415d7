"""What the server tells its log: one line per event, with names and numbers, never with rows or secrets.

An event has a dotted name, such as ``server.started``, and fields. Machines get one JSON object per line, people at a
terminal get plain text; both through stdlib logging, so that whoever embeds a server keeps their own handlers. What
an attacker can cause at will (a refused token, a limit hit) goes through ``rate_limited``, so that the log cannot be
flooded: some lines a second, then a count.

Two things are refused. The text of an error that may quote rows is left out: only errors of the system, and those of
Kolk that are not about the caller's data, keep theirs. And no token passes: ``Redaction`` masks whatever looks like one
in any record that reaches a handler, whoever wrote it, its traceback included.
"""

import json
import logging
import math
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from kolk.errors import AlreadyExists, Corrupted, InternalError, KolkError, NotFound, Unavailable
from kolk.runtime.clock import Clock, SystemClock
from kolk.runtime.secret import Secret, masked

Field = str | int | float | bool | None | Secret
"""What a field may hold. A row is none of these."""

RATE_PER_SECOND = 10
TEXT_LENGTH_MAX = 1_000
"""Longer texts are cut: a log line is not a way to move data."""

_FRAMES_MAX = 12
_TELLING = (OSError, NotFound, AlreadyExists, Unavailable, Corrupted)
"""The errors whose texts hold names, numbers and reasons. Those of others may quote a row."""
_RESERVED = frozenset({"ts", "level", "event", "error", "error_text", "cause", "frames", "exception"})
_ATTRIBUTE = "kolk_event"
_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class _Event:
    """What a formatter finds on a record that came from here."""

    now_ms: int
    fields: Mapping[str, Field]


@dataclass(slots=True)
class _Window:
    """How often a name came within one second. Guarded by Events._lock."""

    started: float
    count: int = 0
    dropped: int = 0


class Events:
    """Writes events to one logger. Thread-safe."""

    def __init__(
        self, logger: logging.Logger, clock: Clock = _SYSTEM_CLOCK, *, rate_per_second: int = RATE_PER_SECOND
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._rate = rate_per_second
        self._lock = threading.Lock()
        # Guarded by _lock. One entry per name, and names stand in the code.
        self._windows: dict[str, _Window] = {}

    def event(
        self, name: str, level: int = logging.INFO, *, error: BaseException | None = None, **fields: Field
    ) -> None:
        """Write one line. ``error`` adds what went wrong and where, without texts that may quote rows."""
        assert _RESERVED.isdisjoint(fields), f"{sorted(_RESERVED)} are the line's own fields"
        if self._logger.isEnabledFor(level):
            given = dict(fields) | (_described(error) if error is not None else {})
            self._logger.log(level, name, extra={_ATTRIBUTE: _Event(self._clock.now_ms(), given)})

    def rate_limited(
        self, name: str, level: int = logging.WARNING, *, error: BaseException | None = None, **fields: Field
    ) -> None:
        """Write one line, unless this name had its share of this second; then count, and tell the count later."""
        with self._lock:
            now = self._clock.monotonic()
            window = self._windows.get(name)
            dropped = 0
            if window is None or now - window.started >= 1:
                dropped = window.dropped if window else 0
                window = self._windows[name] = _Window(now)
            window.count += 1
            is_over = window.count > self._rate
            window.dropped += is_over
        self._tell_dropped(name, dropped)
        if not is_over:
            self.event(name, level, error=error, **fields)

    def flush(self) -> None:
        """Tell what was dropped and not told yet: nothing more may come. Call it now and then, and at the end."""
        with self._lock:
            dropped = {name: window.dropped for name, window in self._windows.items()}
            for window in self._windows.values():
                window.dropped = 0
        for name, count in dropped.items():
            self._tell_dropped(name, count)

    def _tell_dropped(self, name: str, count: int) -> None:
        if count:
            self.event("events.dropped", logging.WARNING, name_of=name, count=count)


class Redaction(logging.Filter):
    """Masks tokens in every record that passes, also in those of other libraries. For handlers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place, so that handlers after this one see the mask too."""
        record.msg, record.args = _message(record), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = masked(record.exc_text)
        if record.stack_info:
            record.stack_info = masked(record.stack_info)
        event = _event_of(record)
        safe = {key: _plain(value) for key, value in event.fields.items()}
        setattr(record, _ATTRIBUTE, _Event(event.now_ms, safe))
        return True


class JsonLines(logging.Formatter):
    """One JSON object per line: ts, level, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        event = _event_of(record)
        line = {"ts": _time(event.now_ms), "level": record.levelname.lower(), "event": _message(record)}
        line |= {key: _plain(value) for key, value in event.fields.items()}
        if detail := _detail(self, record):
            line["exception"] = detail
        return json.dumps(line)


class PlainLines(logging.Formatter):
    """The same for people: time, level, event, fields as name=value. Nothing in a value can start a line."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        event = _event_of(record)
        head = f"{_time(event.now_ms)} {record.levelname:<7} {_word(_message(record), spaces=True)}"
        words = [f"{key}={_word(_plain(value))}" for key, value in event.fields.items()]
        details = [line if line.isprintable() else json.dumps(line) for line in _detail(self, record).splitlines()]
        return "\n    ".join([" ".join([head, *words]), *details])


def log_to(stream: TextIO, logger: logging.Logger, level: int = logging.INFO) -> logging.Handler:
    """Let a logger write to this stream, as fits who reads it. Returns the handler, to be removed again."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    handler.addFilter(Redaction())
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler


def _described(error: BaseException) -> dict[str, Field]:
    """An error as fields. Frames are shown of what nobody foresaw; they have no values in them."""
    fields: dict[str, Field] = {"error": type(error).__name__}
    if isinstance(error, _TELLING):
        fields["error_text"] = str(error)
    if error.__cause__ is not None:
        fields["cause"] = type(error.__cause__).__name__
    if isinstance(error, InternalError) or not isinstance(error, KolkError):
        origin = error.__cause__ or error
        frames = traceback.extract_tb(origin.__traceback__)[-_FRAMES_MAX:]
        fields["frames"] = " > ".join(f"{_tail(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames)
    return fields


def _tail(path: str) -> str:
    """The last two parts of a path: enough to find the file, and nothing about the machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def _event_of(record: logging.LogRecord) -> _Event:
    event = getattr(record, _ATTRIBUTE, None)
    return event if isinstance(event, _Event) else _Event(int(record.created * 1_000), {})


def _message(record: logging.LogRecord) -> str:
    try:
        return masked(record.getMessage())
    except (TypeError, ValueError):
        return masked(str(record.msg))  # arguments that do not fit their text must not cost the line


def _plain(value: Field) -> Field:
    """A value that may be written: numbers as they are, everything else as a text, masked and cut."""
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = masked(str(value))
    return text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX] + "..."


def _detail(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback and stack of a record that has them, masked once more in case no filter came before."""
    traced = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    return masked("\n".join(part for part in (traced, record.stack_info) if part))


def _word(value: Field, *, spaces: bool = False) -> str:
    """Text as it is where it cannot be misread, else in quotes with everything escaped that does not print."""
    text = str(value)
    is_clear = text.isprintable() and '"' not in text and (spaces or " " not in text)
    return text if text and is_clear else json.dumps(text)


def _time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
