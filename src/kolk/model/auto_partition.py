"""Automatic time partitions: which values a partition column takes as time goes by, and when they are old.

A period is an hour, a day, ... of the calendar in one time zone, and its partition value is what a clock on the wall
there shows, cut off at the unit:

=======  ==================  ==========  =====================
unit     string, char(n)     date        int, bigint
=======  ==================  ==========  =====================
hour     2026111514          -           2026111514
day      20261115            2026-11-15  20261115
month    202611              -           202611
quarter  20264               -           20264
year     2026                -           2026
=======  ==================  ==========  =====================

An hour that the clock shows twice, because it was put back, is one period; one that it skips is none. Years are 1 to
9999: moments beyond them take the first and the last value, and a period that would expire beyond never does. This
module knows no clock and creates nothing: now is an argument, and the engine acts.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from enum import Enum
from functools import lru_cache

from kolk.errors import InvalidRows, InvalidSchema
from kolk.model.durations import duration_text, milliseconds
from kolk.model.schema import Schema
from kolk.model.types import DataType, Kind
from kolk.model.wall_clock import is_put_forward, passed_ms, reached_ms, wall_at, zone_named

AUTO_PARTITION_ENABLED = "table.auto-partition.enabled"
AUTO_PARTITION_KEY = "table.auto-partition.key"
AUTO_PARTITION_TIME_UNIT = "table.auto-partition.time-unit"
AUTO_PARTITION_TIME_ZONE = "table.auto-partition.time-zone"
AUTO_PARTITION_PRECREATE = "table.auto-partition.num-precreate"
AUTO_PARTITION_RETENTION = "table.auto-partition.num-retention"
AUTO_PARTITION_GRACE = "table.auto-partition.expiry-grace"
AUTO_PARTITION_OPTIONS = (
    AUTO_PARTITION_ENABLED,
    AUTO_PARTITION_KEY,
    AUTO_PARTITION_TIME_UNIT,
    AUTO_PARTITION_TIME_ZONE,
    AUTO_PARTITION_PRECREATE,
    AUTO_PARTITION_RETENTION,
    AUTO_PARTITION_GRACE,
)
PRECREATE_MAX = 1_000
RETENTION_MAX = 100_000
KEEP_ALL = -1
"""The retention that expires nothing."""

_PRECREATE_DEFAULT = 2
_RETENTION_DEFAULT = "7"
_GRACE_DEFAULT = "1h"
_TEXTS, _NUMBERS = (Kind.STRING, Kind.CHAR), (Kind.INT, Kind.BIGINT)
_EXAMPLE = datetime.datetime(2026, 11, 15, 14, tzinfo=UTC)
_INT_HOUR_YEAR_MAX = 2147
"""The last year whose hours, of ten digits, fit an int."""
_YEARS_REMEMBERED = 4_096


class TimeUnit(Enum):
    """How long a period is."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"

    @property
    def digits(self) -> int:
        """How many digits a value has."""
        return _DIGITS[self]

    def period(self, wall: datetime.datetime) -> int:
        """The number of the period that shows this wall; the next period's is one more."""
        if per_day := _PER_DAY.get(self):
            return wall.toordinal() * per_day + wall.hour * per_day // 24
        per_year = _PER_YEAR[self]
        return wall.year * per_year + (wall.month - 1) * per_year // 12

    def start(self, period: int) -> datetime.datetime | None:
        """The wall that a period begins with; None outside the years 1 to 9999."""
        try:
            if per_day := _PER_DAY.get(self):
                day = datetime.date.fromordinal(period // per_day)
                return datetime.datetime(day.year, day.month, day.day, period % per_day, tzinfo=UTC)
            per_year = _PER_YEAR[self]
            return datetime.datetime(period // per_year, period % per_year * 12 // per_year + 1, 1, tzinfo=UTC)
        except (ValueError, OverflowError):
            return None

    def write(self, wall: datetime.datetime) -> str:
        """The digits of the period that shows this wall."""
        if self is TimeUnit.QUARTER:
            return f"{wall.year:04}{(wall.month + 2) // 3}"
        return f"{wall.year:04}{wall.month:02}{wall.day:02}{wall.hour:02}"[: self.digits]

    def read(self, digits: str) -> datetime.datetime | None:
        """The wall that the period of these digits begins with; None if they are of none."""
        if len(digits) != self.digits or not digits.isascii() or not digits.isdigit():
            return None
        year, rest = int(digits[:4]), digits[4:]
        month = int(rest) * 3 - 2 if self is TimeUnit.QUARTER else int(rest[:2] or 1)
        try:
            return datetime.datetime(year, month, int(rest[2:4] or 1), int(rest[4:] or 0), tzinfo=UTC)
        except ValueError:
            return None


_DIGITS = {TimeUnit.HOUR: 10, TimeUnit.DAY: 8, TimeUnit.MONTH: 6, TimeUnit.QUARTER: 5, TimeUnit.YEAR: 4}
_PER_DAY = {TimeUnit.HOUR: 24, TimeUnit.DAY: 1}
_PER_YEAR = {TimeUnit.MONTH: 12, TimeUnit.QUARTER: 4, TimeUnit.YEAR: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoPartition:
    """How a table's partitions follow time. ``parse`` makes it and checks it against the schema.

    All that has to do with moments needs a zone: see ``in_zone``.
    """

    key: str
    """The partition column that holds the time."""
    kind: Kind
    """That column's kind: how a value is written."""
    unit: TimeUnit
    zone: str | None
    """An IANA name; None if it was not said."""
    precreate: int
    """Periods to keep ready, the present one included."""
    retention: int
    """Past periods to keep, or ``KEEP_ALL``."""
    grace_ms: int
    """How long expiry waits for readers at most."""

    @staticmethod
    def parse(options: Mapping[str, str], schema: Schema, partition_by: Sequence[str]) -> "AutoPartition | None":
        """Read option text, whose other keys are not looked at; None if the table's partitions do not follow time.

        ``partition_by`` names columns of the schema.
        """
        if not _enabled(options):
            return None
        if not partition_by:
            raise InvalidSchema(
                f"{AUTO_PARTITION_ENABLED}=true is only for tables with partition columns; this one has none"
            )
        key = _key(options.get(AUTO_PARTITION_KEY), partition_by)
        unit = _unit(options.get(AUTO_PARTITION_TIME_UNIT, TimeUnit.DAY.value))
        _check_type(key, schema.column(key).type, unit)
        zone = options.get(AUTO_PARTITION_TIME_ZONE)
        if zone is not None:
            zone_named(zone)
        return AutoPartition(
            key=key,
            kind=schema.column(key).type.kind,
            unit=unit,
            zone=zone,
            precreate=_precreate(options.get(AUTO_PARTITION_PRECREATE), partition_by),
            retention=_retention(options.get(AUTO_PARTITION_RETENTION, _RETENTION_DEFAULT)),
            grace_ms=_grace_ms(options.get(AUTO_PARTITION_GRACE, _GRACE_DEFAULT)),
        )

    @property
    def text(self) -> dict[str, str]:
        """The options as text, which ``parse`` reads back with the schema; a zone that was not said is left out."""
        return {
            AUTO_PARTITION_ENABLED: "true",
            AUTO_PARTITION_KEY: self.key,
            AUTO_PARTITION_TIME_UNIT: self.unit.value,
            **({} if self.zone is None else {AUTO_PARTITION_TIME_ZONE: self.zone}),
            AUTO_PARTITION_PRECREATE: str(self.precreate),
            AUTO_PARTITION_RETENTION: str(self.retention),
            AUTO_PARTITION_GRACE: duration_text(self.grace_ms),
        }

    def in_zone(self, name: str) -> "AutoPartition":
        """The same in the zone of this name, unless a zone was said."""
        if self.zone is not None:
            return self
        zone_named(name)
        return replace(self, zone=name)

    def value_at(self, now_ms: int) -> str:
        """The partition value of the period that holds this moment."""
        return self._value(self._now(now_ms))

    def start_of(self, value: str) -> int | None:
        """The first millisecond of the period of this value; None if no clock ever shows it."""
        start = self._start(value)
        if start is None or not _is_shown(self._clock, self.unit, self.unit.period(start)):
            return None
        return reached_ms(self._clock, start)

    def wanted(self, now_ms: int) -> list[str]:
        """The values that should exist now: the present one and those that follow, ``precreate`` in all."""
        period = self.unit.period(self._now(now_ms))
        starts = (self._later(period, count) for count in range(1, self.precreate))
        present = [self.value_at(now_ms)] if self.precreate else []
        return present + [self._value(start) for start in starts if start is not None]

    def expires_ms(self, value: str) -> int | None:
        """The moment from which the period of this value is past retention; None if never, or if it is no value.

        A skipped hour does not count, but expires as well: if somebody made its partition, it does not stay for ever.
        Where a clock is put back over the end of a period, this is when it has left the period for good; so what is
        ``wanted`` is never expired.
        """
        start = self._start(value)
        if start is None or self.retention == KEEP_ALL:
            return None
        following = self._later(self.unit.period(start), self.retention + 1)
        return None if following is None else passed_ms(self._clock, following)

    def check(self, value: str) -> None:
        """Raise InvalidRows, with an example of a right value, if this is no value of the unit."""
        shown, unit = str(value)[:100], self.unit.value
        if self._start(value) is None:
            raise InvalidRows(
                f"the partition column {self.key!r} holds {'an' if self.unit is TimeUnit.HOUR else 'a'} {unit} such as"
                f" {self._value(_EXAMPLE)}, not {shown!r}"
            )
        if self.zone is not None and self.start_of(value) is None:
            raise InvalidRows(
                f"the partition column {self.key!r} cannot hold {shown!r}: clocks skip this {unit} in {self.zone}; the"
                f" column holds time of that zone, such as {self._value(_EXAMPLE)}"
            )

    # --- values

    @property
    def _last(self) -> datetime.datetime:
        year = _INT_HOUR_YEAR_MAX if self.kind is Kind.INT and self.unit is TimeUnit.HOUR else datetime.MAXYEAR
        return datetime.datetime(year, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

    def _now(self, now_ms: int) -> datetime.datetime:
        return min(wall_at(self._clock, now_ms), self._last)

    def _value(self, wall: datetime.datetime) -> str:
        if self.kind is Kind.DATE:
            return wall.date().isoformat()
        digits = self.unit.write(wall)
        return str(int(digits)) if self.kind in _NUMBERS else digits

    def _start(self, value: str) -> datetime.datetime | None:
        """The wall that the period of this value begins with."""
        digits = value.replace("-", "") if self.kind is Kind.DATE else value
        start = self.unit.read(digits.zfill(self.unit.digits) if self.kind in _NUMBERS else digits)
        # Written back it must be the same: each period has one value.
        return start if start is not None and start <= self._last and self._value(start) == value else None

    def _start_of_period(self, period: int) -> datetime.datetime | None:
        start = self.unit.start(period)
        return start if start is not None and start <= self._last else None

    def _later(self, period: int, count: int) -> datetime.datetime | None:
        """The wall that the period begins with which is so many after this one, without those that are skipped."""
        while (start := self._start_of_period(period + count)) is not None:
            if self.unit not in _PER_DAY:
                return start
            last = period + count
            years = range((self.unit.start(period) or start).year, start.year + 1)
            missed = sum(
                period < skipped <= last for year in years for skipped in _skipped(self._clock, self.unit, year)
            )
            if not missed:
                return start
            period, count = last, missed
        return None

    @property
    def _clock(self) -> datetime.tzinfo:
        assert self.zone is not None, "the engine says which zone a table is in when it makes the table"
        return zone_named(self.zone)


@lru_cache(maxsize=_YEARS_REMEMBERED)
def _skipped(clock: datetime.tzinfo, unit: TimeUnit, year: int) -> tuple[int, ...]:
    """The hours or days of a year that clocks skip."""
    per_day, first = _PER_DAY[unit], datetime.date(year, 1, 1).toordinal()
    last = datetime.date(year, 12, 31).toordinal()
    found: set[int] = set()
    for ordinal in range(max(first - 1, 1), last + 1):
        day = datetime.datetime.fromordinal(ordinal).replace(tzinfo=UTC)
        if is_put_forward(clock, day):  # perhaps over midnight, so the next day's are looked at as well
            found.update(range(max(ordinal, first) * per_day, min(ordinal + 2, last + 1) * per_day))
    return tuple(period for period in sorted(found) if not _is_shown(clock, unit, period))


def _is_shown(clock: datetime.tzinfo, unit: TimeUnit, period: int) -> bool:
    start = unit.start(period)
    return start is not None and unit.period(wall_at(clock, reached_ms(clock, start))) == period


# --- options


def _enabled(options: Mapping[str, str]) -> bool:
    text = options.get(AUTO_PARTITION_ENABLED, "false")
    if text.lower() not in ("true", "false"):
        raise InvalidSchema(f"{AUTO_PARTITION_ENABLED} is one of true, false, not {text[:100]!r}")
    if text.lower() == "true":
        return True
    for key in AUTO_PARTITION_OPTIONS[1:]:
        if key in options:
            raise InvalidSchema(f"{key} does nothing here: set {AUTO_PARTITION_ENABLED}=true or leave it out")
    return False


def _key(name: str | None, partition_by: Sequence[str]) -> str:
    if name is None and len(partition_by) > 1:
        raise InvalidSchema(
            f"{AUTO_PARTITION_KEY} must say which of the partition columns {', '.join(partition_by)} holds the time"
        )
    if name is not None and name not in partition_by:
        raise InvalidSchema(
            f"{AUTO_PARTITION_KEY}: {name[:100]!r} is not a partition column; choose among {', '.join(partition_by)}"
        )
    return partition_by[0] if name is None else name


def _unit(text: str) -> TimeUnit:
    units = {unit.value: unit for unit in TimeUnit}
    if text.lower() not in units:
        raise InvalidSchema(f"{AUTO_PARTITION_TIME_UNIT} is one of {', '.join(units)}, not {text[:100]!r}")
    return units[text.lower()]


def _check_type(name: str, type: DataType, unit: TimeUnit) -> None:
    if type.kind is Kind.DATE and unit is not TimeUnit.DAY:
        raise InvalidSchema(
            f"{AUTO_PARTITION_TIME_UNIT}={unit.value} does not go with {name!r}, which is a date; set it to"
            f" {TimeUnit.DAY.value}, or make {name!r} a string"
        )
    if type.kind is Kind.CHAR and type.arguments[0] < unit.digits:
        raise InvalidSchema(
            f"{name!r} is a {type}, too short for {AUTO_PARTITION_TIME_UNIT}={unit.value}, whose values are such as"
            f" {unit.write(_EXAMPLE)}; make it char({unit.digits}) or string"
        )
    if type.kind not in (*_TEXTS, *_NUMBERS, Kind.DATE):
        raise InvalidSchema(
            f"{name!r} is a {type.shown}; a partition column that holds the time is a string, char, date, int or bigint"
        )


def _precreate(text: str | None, partition_by: Sequence[str]) -> int:
    if text is None:
        return _PRECREATE_DEFAULT if len(partition_by) == 1 else 0
    found = _whole(text)
    if found is None or found > PRECREATE_MAX:
        raise InvalidSchema(f"{AUTO_PARTITION_PRECREATE} is a number from 0 to {PRECREATE_MAX}, not {text[:100]!r}")
    if found and len(partition_by) > 1:
        raise InvalidSchema(
            f"{AUTO_PARTITION_PRECREATE} is only for tables with one partition column: this one has"
            f" {', '.join(partition_by)}, and nobody knows the values of the others ahead; leave it out"
        )
    return found


def _retention(text: str) -> int:
    found = KEEP_ALL if text == str(KEEP_ALL) else _whole(text)
    if found is None or found > RETENTION_MAX:
        raise InvalidSchema(
            f"{AUTO_PARTITION_RETENTION} is a number from 0 to {RETENTION_MAX}, or {KEEP_ALL} to keep all,"
            f" not {text[:100]!r}"
        )
    return found


def _grace_ms(text: str) -> int:
    found = milliseconds(text)
    if found is None:
        raise InvalidSchema(f"{AUTO_PARTITION_GRACE} is a duration such as 10min or 1h, not {text[:100]!r}")
    return found


def _whole(text: str) -> int | None:
    # The length comes first: int itself raises on thousands of digits.
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else None
