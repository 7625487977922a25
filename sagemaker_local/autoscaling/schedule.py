"""Schedules of Application Auto Scaling: `at(...)`, `rate(...)` and `cron(...)`."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from dataclasses import dataclass
from typing import Final

from sagemaker_local.aws_errors import ValidationException

_RATE: Final = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
_AT: Final = re.compile(r"at\((\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})\)")
_CRON: Final = re.compile(r"cron\((\S+) (\S+) (\S+) (\S+) (\S+) (\S+)\)")
_UNITS: Final = {"minute": 60, "hour": 3600, "day": 86_400}
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (1, 7), (1970, 2199))
"""Minutes, hours, days of the month, months, days of the week from Sunday, years."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: a time, an interval from `start` on, or cron fields of local time in `zone`."""

    zone: zoneinfo.ZoneInfo
    start: float
    at: float | None = None
    every: int = 0
    fields: tuple[frozenset[int], ...] = ()

    @classmethod
    def parse(cls, text: str, timezone: str, start: float) -> Schedule:
        """Parse a schedule. Raises ValidationException."""
        try:
            zone = zoneinfo.ZoneInfo(timezone)
            if match := _AT.fullmatch(text):
                moment = datetime.datetime.fromisoformat(match[1]).replace(tzinfo=zone)
                return cls(zone, start, at=moment.timestamp())
            if (match := _RATE.fullmatch(text)) and int(match[1]) > 0:
                return cls(zone, start, every=int(match[1]) * _UNITS[match[2]])
            if match := _CRON.fullmatch(text):
                fields = [_field(part, place) for place, part in enumerate(match.groups())]
                return cls(zone, start, fields=tuple(fields))
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
            raise ValidationException(f"Schedule {text} in {timezone} cannot be read: {error}") from error
        raise ValidationException(
            f"Schedule must be at(...), rate(...) or cron(...) of 6 fields, got {text}."
        )

    def due(self, after: float, until: float) -> bool:
        """Return True if the schedule has a time in (after, until]."""
        if self.at is not None:
            return after < self.at <= until
        if self.every:
            return int((until - self.start) // self.every) > int(max(after - self.start, 0.0) // self.every)
        minute = int(after // 60 + 1) * 60
        while minute <= until:
            if self._matches(datetime.datetime.fromtimestamp(minute, self.zone)):
                return True
            minute += 60
        return False

    def _matches(self, moment: datetime.datetime) -> bool:
        weekday = moment.isoweekday() % 7 + 1
        values = (moment.minute, moment.hour, moment.day, moment.month, weekday, moment.year)
        return all(value in field for value, field in zip(values, self.fields, strict=True))


def _field(text: str, place: int) -> frozenset[int]:
    """Parse one cron field: `1,3-5,*/10,MON-FRI`, `*` or `?`. Raises ValueError."""
    low, high = _RANGES[place]
    found: set[int] = set()
    for part in text.upper().split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = low, high
        else:
            begin, _, end = span.partition("-")
            first = _number(begin, place)
            last = _number(end, place) if end else (high if step else first)
        if not low <= first <= last <= high:
            raise ValueError(f"{part} is out of {low} to {high}")
        found.update(range(first, last + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, place: int) -> int:
    names = {3: _MONTHS, 4: _DAYS}.get(place, ())
    return names.index(text) + 1 if text in names else int(text)
