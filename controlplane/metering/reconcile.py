"""Holds the sums of each day against its events; a difference is told, not mended."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connection

from controlplane.metering.insert import summed_from_events
from controlplane.metering.models import UsageHour, UsageRollup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drift:
    """One row of sums that is not what its events say.

    Attributes:
        table: of the row: `UsageRollup` or `UsageHour`.
        dimensions: whose sums they are.
        held, expected: by name of the sum; None where there is no such row, or no such event.
    """

    table: str
    dimensions: dict[str, str]
    held: dict[str, int] | None
    expected: dict[str, int] | None


def sums_drift(*, day: dt.date) -> list[Drift]:
    """Where the UTC day's sums differ from its events; empty when all agree.

    In one statement a table, hence at one moment, whatever is ingested meanwhile.
    """
    found = [drift for sums in (UsageRollup, UsageHour) for drift in _drift(sums, day)]
    for drift in found:
        logger.error(
            "sums of usage differ from its events: %s %s holds %s, events say %s",
            drift.table, drift.dimensions, drift.held, drift.expected,
        )  # fmt: skip
    return found


def _drift(sums: type[UsageRollup | UsageHour], day: dt.date) -> Iterator[Drift]:
    names, table = (*sums.DIMENSIONS, *sums.SUMS), sums._meta.db_table
    held = f"SELECT {', '.join(names)} FROM {table} WHERE day = %s"  # noqa: S608  # names of ours
    expected = summed_from_events(sums, "day = %s")
    with connection.cursor() as cursor:
        # What is in both is right; the rest comes twice, once from each side, where both have the row.
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
