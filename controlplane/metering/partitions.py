"""Daily partitions of usage events on PostgreSQL: created before the day begins, dropped when it is old.

Dropping a day takes one statement whatever it holds, and leaves no bloat. The sums are kept. SQLite has one
table, from which old days are deleted.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Iterable
from typing import Final

from django.db import OperationalError, connection, transaction

from controlplane.metering.models import UsageEventRow

logger = logging.getLogger(__name__)
PARENT: Final = UsageEventRow._meta.db_table
_LOCK: Final = 7_301_118
"""Advisory lock of sessions that create or drop partitions."""
_NAME: Final = re.compile(rf"{PARENT}_(\d{{8}})")


def partitions_ensure(days: Iterable[dt.date]) -> None:
    """Creates the missing partitions of `days`; does nothing on SQLite."""
    if connection.vendor != "postgresql" or not (missing := set(days) - set(_held())):
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        for day in sorted(missing - set(_held())):
            name, after = _name(day), day + dt.timedelta(days=1)
            # Created separately and attached: this neither waits for readers of the parent nor blocks them.
            cursor.execute(f"CREATE TABLE {name} (LIKE {PARENT} INCLUDING DEFAULTS INCLUDING INDEXES)")
            # Reads through the parent use its policies; without policies the partition itself is unreadable.
            cursor.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
            cursor.execute(
                f"ALTER TABLE {PARENT} ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{after}')"
            )


def partitions_missing(days: Iterable[dt.date]) -> set[dt.date]:
    """Return those of `days` without a partition; none on SQLite."""
    return set(days) - set(_held()) if connection.vendor == "postgresql" else set()


def events_drop(*, before: dt.date) -> int:
    """Deletes all events of days before `before`; returns how many days."""
    if connection.vendor != "postgresql":
        old = UsageEventRow.objects.filter(day__lt=before)
        count = old.values("day").distinct().count()
        old.delete()
        return count
    return sum(_drop(day) for day in sorted(_held()) if day < before)


def _drop(day: dt.date) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            # The lock waits for every reader of the parent, such as a dump, and blocks all later ones.
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            cursor.execute(f"DROP TABLE IF EXISTS {_name(day)}")
    except OperationalError as error:
        logger.warning("dropping usage events of %s failed; it will be retried tomorrow: %s", day, error)
        return False
    return True


def _held() -> list[dt.date]:
    """Days that have a partition of ours; partitions with another name are the operator's own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = %s::regclass",
            [PARENT],
        )
        found = [_NAME.fullmatch(name) for (name,) in cursor.fetchall()]
    return [dt.date.fromisoformat(match[1]) for match in found if match]


def _name(day: dt.date) -> str:
    return f"{PARENT}_{day:%Y%m%d}"
