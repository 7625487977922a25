"""Compares each day's sums with its events; differences are reported, not corrected."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.db import connection

from controlplane.metering.adapter_hours import KEEP_DAYS, adapter_hours_complete, adapter_sums_differ
from controlplane.metering.insert import summed_from_events
from controlplane.metering.models import UsageHour, UsageRollup
from controlplane.metering.services import keep_from
from controlplane.platform.task_signs import USAGE_CHECK, check_ended, check_from

_BACK: Final = 3
"""Days that are checked each night, besides days that differed in the last check.

`manage.py check_usage` checks any others.
"""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drift:
    """One row of sums that differs from its events.

    Attributes:
        table: model of the row: `UsageRollup` or `UsageHour`.
        dimensions: columns that identify the row.
        held, expected: stored and recomputed amounts by name; None if there is no such row, or no such event.
    """

    table: str
    dimensions: dict[str, str]
    held: dict[str, int] | None
    expected: dict[str, int] | None

    @property
    def text(self) -> str:
        """The difference as a sentence."""
        return f"{self.table} {self.dimensions}: {self.held}, events say {self.expected}"


def sums_drift(*, day: dt.date) -> list[Drift]:
    """Return where the UTC day's sums differ from its events; empty if all agree.

    One statement per table reads both at one moment, whatever is ingested meanwhile.
    """
    found = [drift for sums in (UsageRollup, UsageHour) for drift in _drift(sums, day)]
    kept = day >= dt.datetime.now(dt.UTC).date() - dt.timedelta(days=KEEP_DAYS)
    if kept and adapter_hours_complete(day=day):
        for row in adapter_sums_differ(day=day):
            logger.error("hourly totals of an adapter differ from events: %s", row)
    for drift in found:
        logger.error(
            "usage totals differ from events: %s %s has %s, events give %s",
            drift.table,
            drift.dimensions,
            drift.held,
            drift.expected,
        )
    return found


def sums_check(*, start: dt.date, end: dt.date) -> list[Drift]:
    """Check the UTC days `start` to `end`, both included, and report the result to health."""
    days = [start + dt.timedelta(days=number) for number in range((end - start).days + 1)]
    found = [drift for day in days for drift in sums_drift(day=day)]
    check_ended(
        settings.GRAFTWORK.redis_url,
        check=USAGE_CHECK,
        start=start,
        end=end,
        differing=len(found),
        examples=[drift.text for drift in found],
    )
    return found


def days_checked(today: dt.date) -> tuple[dt.date, dt.date]:
    """Return the first and last UTC day of a nightly check.

    Days that differ are checked until they are corrected, or their events are dropped.
    """
    start = check_from(
        settings.GRAFTWORK.redis_url,
        check=USAGE_CHECK,
        usual=today - dt.timedelta(days=_BACK),
        oldest=keep_from(),
    )
    return start, today - dt.timedelta(days=1)


def _drift(sums: type[UsageRollup | UsageHour], day: dt.date) -> Iterator[Drift]:
    names, table = (*sums.DIMENSIONS, *sums.SUMS), sums._meta.db_table
    held = f"SELECT {', '.join(names)} FROM {table} WHERE day = %s"  # noqa: S608  # names of ours
    expected = summed_from_events(sums, "day = %s")
    with connection.cursor() as cursor:
        # Rows that are equal on both sides cancel out; a differing row comes once from each side that has it.
        cursor.execute(
            f"SELECT 'held', * FROM (SELECT * FROM ({held}) h EXCEPT SELECT * FROM ({expected}) e) a"  # noqa: S608
            f" UNION ALL "
            f"SELECT 'expected', * FROM (SELECT * FROM ({expected}) e EXCEPT SELECT * FROM ({held}) h) b",
            [str(day)] * 4,
        )
        rows = cursor.fetchall()
    sides: dict[tuple[str, ...], dict[str, dict[str, int]]] = {}
    for side, *values in rows:
        key = tuple(str(value) for value in values[: len(sums.DIMENSIONS)])
        amounts = dict(zip(sums.SUMS, map(int, values[len(sums.DIMENSIONS) :]), strict=True))
        sides.setdefault(key, {})[side] = amounts
    for key, amounts_by_side in sorted(sides.items()):
        dimensions = dict(zip(sums.DIMENSIONS, key, strict=True))
        yield Drift(sums.__name__, dimensions, amounts_by_side.get("held"), amounts_by_side.get("expected"))
