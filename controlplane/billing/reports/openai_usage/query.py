"""Parses queries of OpenAI's usage API: a range cut into buckets, a page, groups and filters."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from controlplane.errors import InvalidInputError

_SECONDS: Final = {"1h": 3600, "1d": 86_400}
_MAX_TIME: Final = int(dt.datetime(9999, 1, 1, tzinfo=dt.UTC).timestamp())
_MOST_VALUES: Final = 100
_LONGEST: Final = 200
_PAGE: Final = re.compile(r"page_([0-9]{1,12})")

Parameters = Mapping[str, list[str]]
"""Values by name, as in the query string; lists as `name=a&name=b`, `name[]=a` or `name=a,b`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Parameters that one of the two reports accepts.

    Attributes:
        limits: bucket width -> (buckets per page by default, at most).
        groups: names accepted in `group_by`.
        unknown: groups and filters of OpenAI's that are not supported here -> why.
        filters: names of list filters.
    """

    limits: Mapping[str, tuple[int, int]]
    groups: tuple[str, ...]
    unknown: Mapping[str, str]
    filters: tuple[str, ...]


_NO_USERS: Final = "usage is grouped by key and project, not by user"
COMPLETIONS: Final = Kind(
    limits={"1d": (7, 31), "1h": (24, 168)},
    groups=("project_id", "api_key_id", "model"),
    unknown={
        "user_id": _NO_USERS,
        "user_ids": _NO_USERS,
        "batch": "batch jobs are not supported",
        "service_tier": "service tiers are not supported",
        "api_source": "API sources are not supported",
    },
    filters=("project_ids", "api_key_ids", "models"),
)
COSTS: Final = Kind(
    limits={"1d": (7, 180)},
    groups=("project_id", "api_key_id", "line_item"),
    unknown={"user_id": _NO_USERS, "api_source": "API sources are not supported", "user_ids": _NO_USERS},
    filters=("project_ids", "api_key_ids", "line_items"),
)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A parsed query for one page of buckets.

    Attributes:
        width: seconds of a bucket.
        first, end: Unix times of the page's first bucket and of the range's end (whole buckets).
        count: buckets of this page.
    """

    width: int
    first: int
    end: int
    count: int
    group_by: tuple[str, ...]
    filters: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, parameters: Parameters, kind: Kind, *, now: dt.datetime) -> Self:
        """Parse and check query parameters. Raises InvalidInputError naming the parameter."""
        found = {name.removesuffix("[]"): values for name, values in parameters.items()}
        known = {"start_time", "end_time", "bucket_width", "group_by", "limit", "page", *kind.filters}
        for name in sorted(set(found) - known):
            why = kind.unknown.get(name, f"it is none of {', '.join(sorted(known))}")
            raise InvalidInputError(f"{name[:64]} is not supported: {why}", field=name[:64])
        width = _width(found, kind)
        seconds = _SECONDS[width]
        # Buckets are whole: the first one contains the start, the last one the end's last second.
        start = _time(found, "start_time", None) // seconds * seconds
        end = -(-min(_time(found, "end_time", now), int(now.timestamp()) + 1) // seconds) * seconds
        usual, most = kind.limits[width]
        limit = _number(found, "limit", usual, least=1, most=most)
        first = _first(found, start, seconds)
        count = max(0, min(limit, (end - first) // seconds))
        filters = {name: frozenset(_list(found, name)) for name in kind.filters if name in found}
        return cls(seconds, first, end, count, _groups(found, kind), filters)

    @property
    def next_page(self) -> str | None:
        """Return the cursor of the next page; None when this is the last."""
        after = self.first + self.count * self.width
        return f"page_{after}" if self.count and after < self.end else None

    @property
    def days(self) -> tuple[dt.date, dt.date]:
        """Return the first and last UTC day of the page's buckets."""
        last = self.first + max(self.count, 1) * self.width - 1
        return _utc(self.first).date(), _utc(last).date()

    def buckets(self) -> Iterator[int]:
        """Unix times at which the page's buckets start."""
        return iter(range(self.first, self.first + self.count * self.width, self.width))


def _width(found: Parameters, kind: Kind) -> str:
    width = _one(found, "bucket_width") or "1d"
    if width not in kind.limits:
        ask = " or ".join(kind.limits)
        why = "usage is summed hourly" if "1h" in kind.limits else "prices are daily"
        raise InvalidInputError(
            f"bucket_width {width[:16]!r} is not supported, since {why}: use {ask}", field="bucket_width"
        )
    return width


def _groups(found: Parameters, kind: Kind) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_list(found, "group_by")))
    for name in names:
        if name not in kind.groups:
            why = kind.unknown.get(name, f"groups are {', '.join(kind.groups)}")
            raise InvalidInputError(f"cannot group by {name[:64]!r}: {why}", field="group_by")
    return names


def _first(found: Parameters, start: int, seconds: int) -> int:
    page = _one(found, "page")
    if page is None:
        return start
    match = _PAGE.fullmatch(page)
    if match is None or int(match[1]) % seconds or not start <= int(match[1]) <= _MAX_TIME:
        raise InvalidInputError("page must be the next_page of a response to the same query", field="page")
    return int(match[1])


def _time(found: Parameters, name: str, default: dt.datetime | None) -> int:
    if name not in found and default is None:
        raise InvalidInputError(f"{name} is required, in Unix seconds", field=name)
    return _number(
        found, name, 0 if default is None else int(default.timestamp()) + 1, least=0, most=_MAX_TIME
    )


def _number(found: Parameters, name: str, default: int, *, least: int, most: int) -> int:
    text = _one(found, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 13 and least <= int(text) <= most):
        raise InvalidInputError(f"{name} must be a whole number from {least} to {most}", field=name)
    return int(text)


def _one(found: Parameters, name: str) -> str | None:
    values = found.get(name)
    return values[-1] if values else None


def _list(found: Parameters, name: str) -> list[str]:
    # A line item's name has a comma in it.
    raw = found.get(name, ())
    parts = raw if name == "line_items" else (part for value in raw for part in value.split(","))
    values = [part.strip() for part in parts]
    values = [value for value in values if value]
    if len(values) > _MOST_VALUES or any(len(value) > _LONGEST for value in values):
        raise InvalidInputError(
            f"{name} takes at most {_MOST_VALUES} values of at most {_LONGEST} characters", field=name
        )
    return values


def _utc(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
