"""Scaling policy of a deployment: its validated fields, and the bounds that its schedule sets."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self

from controlplane.errors import InvalidInputError

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST_COPIES: Final = 1000
METRICS_SECONDS: Final = (0, 10, 30, 60, 120, 180, 240, 300)
"""SageMaker's intervals of metrics, and 0 for none of one's own."""
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_NAME: Final = re.compile(r"[a-z0-9](-?[a-z0-9]){0,39}")
_MOST_SCHEDULED: Final = 20


class Metric(StrEnum):
    """Per-copy metric that is kept near the target."""

    CONCURRENCY = "concurrency"
    INVOCATIONS = "invocations"


class Routing(StrEnum):
    """How a SageMaker endpoint chooses among copies."""

    LEAST_OUTSTANDING = "LEAST_OUTSTANDING_REQUESTS"
    RANDOM = "RANDOM"


class Release(StrEnum):
    """How SageMaker releases instances: only empty ones, or after consolidating copies."""

    IDLE = "IDLE_RELEASE"
    CONSOLIDATION = "CONSOLIDATION"


@dataclass(frozen=True, slots=True)
class ScheduledBounds:
    """Bounds that replace the policy's own from `at` (wall-clock time `HH:MM`) on each of `days`."""

    name: str
    at: str
    days: tuple[str, ...]
    min_copies: int
    max_copies: int

    def moment(self, day: dt.date, zone: dt.tzinfo) -> dt.datetime | None:
        """Return when the entry takes effect on `day`; None if it does not."""
        if DAYS[day.weekday()] not in self.days:
            return None
        hour, minute = map(int, self.at.split(":"))
        return dt.datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """One policy; equal policies mean the same for every kind of target.

    Attributes:
        target: value of `metric` per copy: concurrent requests, or requests per minute.
        from_zero: copies that the first request starts when no copy runs, at most `max_copies`.
        out_after, in_after: seconds that the metric must be above the target, or below nine tenths of it.
        out_cooldown, in_cooldown: seconds between two changes in the same direction.
        protect: target tracking only adds copies and never removes one.
        schedule: each entry replaces the bounds from its time on, in `timezone`, until the next entry.
        hold_seconds: how long gateways hold a request that finds no copy; 0 refuses it at once.
        routing, release, release_cooldown_minutes: settings of SageMaker's endpoint and its instances.
        metrics_seconds: interval of the endpoint's enhanced and detailed metrics in CloudWatch; 0 for AWS's
            standard metrics.
        basic_metrics: turn off the endpoint's detailed observability, which AWS turns on for new endpoints.
    """

    min_copies: int
    max_copies: int
    target: float
    metric: Metric = Metric.CONCURRENCY
    from_zero: int = 1
    out_after: int = 30
    in_after: int = 900
    out_cooldown: int = 60
    in_cooldown: int = 300
    protect: bool = False
    schedule: tuple[ScheduledBounds, ...] = ()
    timezone: str = "UTC"
    hold_seconds: int = 60
    routing: Routing = Routing.LEAST_OUTSTANDING
    release: Release | None = None
    release_cooldown_minutes: int = 10
    metrics_seconds: int = 0
    basic_metrics: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, min_copies: int, max_copies: int) -> Self:
        """Return the policy from JSON `values`, within the deployment's bounds.

        Raises:
            InvalidInputError: a value is unknown, malformed or out of bounds.
        """
        known = {item.name for item in fields(cls)} - {"min_copies", "max_copies"}
        if unknown := sorted(set(values) - known):
            raise _wrong(unknown[0], f"does not exist; existing fields: {', '.join(sorted(known))}")
        if "target" not in values:
            raise _wrong("target", "is required: the number of requests per copy")
        given = {name: _READ.get(name, _count)(name, value) for name, value in values.items()}
        policy = cls(min_copies=min_copies, max_copies=max_copies, **given)
        _check_bounds("min_copies", min_copies, max_copies)
        return policy

    @classmethod
    def stored(cls, values: Mapping[str, Any], *, min_copies: int, max_copies: int) -> Self:
        """Return the policy of a row, ignoring fields that a newer version has added."""
        known = {item.name for item in fields(cls)} - {"min_copies", "max_copies"}
        supported = {name: value for name, value in values.items() if name in known}
        return cls.from_json(supported, min_copies=min_copies, max_copies=max_copies)

    def to_json(self) -> dict[str, Any]:
        """Return the values that `of` accepts."""
        values = asdict(self)
        del values["min_copies"], values["max_copies"]
        return values | {"schedule": [asdict(item) | {"days": list(item.days)} for item in self.schedule]}

    @property
    def least(self) -> int:
        """Lowest minimum number of copies at any time."""
        return min(self.min_copies, *(item.min_copies for item in self.schedule), self.min_copies)

    def bounds(self, now: dt.datetime) -> tuple[int, int]:
        """Return (minimum, maximum) copies at `now`, by the schedule's latest entry, if any."""
        zone = zoneinfo.ZoneInfo(self.timezone)
        today = now.astimezone(zone).date()
        latest: tuple[dt.datetime, int, ScheduledBounds] | None = None
        for days_ago in range(8):
            day = today - dt.timedelta(days=days_ago)
            for index, item in enumerate(self.schedule):
                moment = item.moment(day, zone)
                if moment is None or (at := moment.astimezone(dt.UTC)) > now:
                    continue
                if latest is None or (at, index) > latest[:2]:
                    latest = (at, index, item)
        if latest is None:
            return self.min_copies, self.max_copies
        return latest[2].min_copies, latest[2].max_copies


def _wrong(field: str, text: str) -> InvalidInputError:
    return InvalidInputError(f"{field} {text}", field=field)


_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "from_zero": (1, MOST_COPIES),
    "out_after": (0, 3600),
    "in_after": (0, 86_400),
    "out_cooldown": (0, 86_400),
    "in_cooldown": (0, 86_400),
    "hold_seconds": (0, 600),
    "release_cooldown_minutes": (5, 1440),
}


def _count(name: str, value: Any) -> int:
    least, most = _BOUNDS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(name, f"must be an integer from {least} to {most}, got {value!r}")
    return value


def _target(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.01 <= value <= 1e6:
        raise _wrong(name, f"must be a number from 0.01 to 1,000,000, got {value!r}")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, f"must be true or false, got {value!r}")
    return value


def _metric(name: str, value: Any) -> Metric:
    if value not in tuple(Metric):
        raise _wrong(name, f"must be one of {', '.join(Metric)}, got {value!r}")
    return Metric(value)


def _routing(name: str, value: Any) -> Routing:
    if value not in tuple(Routing):
        raise _wrong(name, f"must be one of {', '.join(Routing)}, got {value!r}")
    return Routing(value)


def _release(name: str, value: Any) -> Release | None:
    if value is not None and value not in tuple(Release):
        raise _wrong(name, f"must be null or one of {', '.join(Release)}, got {value!r}")
    return None if value is None else Release(value)


def _metrics_seconds(name: str, value: Any) -> int:
    if type(value) is not int or value not in METRICS_SECONDS:
        raise _wrong(name, f"must be one of {', '.join(map(str, METRICS_SECONDS))}, got {value!r}")
    return value


def _timezone(name: str, value: Any) -> str:
    try:
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise _wrong(name, f"must be an IANA time zone, such as Europe/Berlin, got {value!r}") from None
    return str(value)


def _schedule(name: str, value: Any) -> tuple[ScheduledBounds, ...]:
    if not isinstance(value, list | tuple) or len(value) > _MOST_SCHEDULED:
        raise _wrong(name, f"must be a list of at most {_MOST_SCHEDULED} entries")
    found = tuple(_scheduled(item) for item in value)
    if len({item.name for item in found}) < len(found):
        raise _wrong(name, "must not have two entries of the same name")
    return found


def _scheduled(value: Any) -> ScheduledBounds:
    wanted = {item.name for item in fields(ScheduledBounds)}
    if not isinstance(value, Mapping) or set(value) != wanted:
        raise _wrong("schedule", f"entries must have the fields {', '.join(sorted(wanted))}")
    if not isinstance(value["name"], str) or _NAME.fullmatch(value["name"]) is None:
        raise _wrong("schedule", "entry names must be 1-40 lower-case letters, digits and inner hyphens")
    if not isinstance(value["at"], str) or _TIME.fullmatch(value["at"]) is None:
        raise _wrong("schedule", f"at must be HH:MM, such as 08:30, got {value['at']!r}")
    days = value["days"]
    if not isinstance(days, list | tuple) or not days or not set(days) <= set(DAYS):
        raise _wrong("schedule", f"days must be a subset of {', '.join(DAYS)}")
    for field in ("min_copies", "max_copies"):
        if not isinstance(value[field], int) or isinstance(value[field], bool):
            raise _wrong("schedule", f"numbers of copies must be integers, got {value[field]!r}")
    _check_bounds("schedule", value["min_copies"], value["max_copies"])
    ordered = tuple(day for day in DAYS if day in days)
    return ScheduledBounds(value["name"], value["at"], ordered, value["min_copies"], value["max_copies"])


def _check_bounds(field: str, least: int, most: int) -> None:
    if not (0 <= least <= most and 1 <= most <= MOST_COPIES):
        text = f"must satisfy 0 <= min_copies <= max_copies and 1 <= max_copies <= {MOST_COPIES}"
        raise _wrong(field, text)


_READ: Final[Mapping[str, Any]] = {
    "target": _target,
    "metric": _metric,
    "protect": _flag,
    "schedule": _schedule,
    "timezone": _timezone,
    "routing": _routing,
    "release": _release,
    "metrics_seconds": _metrics_seconds,
    "basic_metrics": _flag,
}
