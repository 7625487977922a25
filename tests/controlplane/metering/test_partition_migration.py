"""Back to an earlier release, which makes no partitions, and forward again, with the events there are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.partitions import events_drop
from controlplane.metering.services import keep_from, usage_ingest
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import stream_id, usage_event

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has partitions"),
]


def _migrate(*targets: tuple[str, str]) -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(list(targets) or executor.loader.graph.leaf_nodes())


def _ingest(name: str, day: dt.date) -> int:
    event = usage_event(name, day=day)
    known(event.base_model, tenants=(event.tenant,))
    return usage_ingest(entries=[StreamEntry(stream_id(0), event.to_json().encode())])


def _insert_without_id() -> None:
    """As a release without partitions does: of a day that none was ever made for."""
    names = [str(field.column) for field in UsageEventRow._meta.concrete_fields if field.column != "id"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT column_name FROM information_schema.columns WHERE table_name = %s",
                       [UsageEventRow._meta.db_table])  # fmt: skip
        there = {name for (name,) in cursor.fetchall()}
        kept = [name for name in names if name in there]
        values = ", ".join("'2030-01-01'" if name == "day" else name for name in kept)
        cursor.execute(
            f"INSERT INTO {UsageEventRow._meta.db_table} ({', '.join(kept)})"
            f" SELECT {values} FROM {UsageEventRow._meta.db_table} LIMIT 1"
        )


@pytest.fixture
def latest() -> Iterator[None]:
    """Leaves the newest schema for the tests that follow."""
    yield
    _migrate()


@pytest.mark.usefixtures("latest")
def test_the_table_is_whole_without_partitions_and_has_its_rows_with_them_again() -> None:
    days = [keep_from() + dt.timedelta(days=number) for number in (0, 5)]
    assert sum(_ingest(f"r{day}", day) for day in days) == 2
    _migrate(("metering", "0003_sums_by_hour"))
    _insert_without_id()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT id) FROM metering_usageeventrow")
        assert cursor.fetchone() == (3, 3)
        cursor.execute("DELETE FROM metering_usageeventrow WHERE day = '2030-01-01'")
    _migrate()
    assert sorted(UsageEventRow.objects.values_list("day", flat=True)) == days
    assert _ingest("another", days[0]) == 1
    assert _ingest("another", days[0]) == 0
    assert UsageEventRow.objects.values("pk").distinct().count() == 3
    assert sum(UsageHour.objects.values_list("requests", flat=True)) == 3


@pytest.mark.usefixtures("latest")
def test_sums_of_dropped_events_outlive_the_way_back_and_forward() -> None:
    days = [keep_from() + dt.timedelta(days=number) for number in (0, 5)]
    assert sum(_ingest(f"r{day}", day) for day in days) == 2
    assert events_drop(before=days[1]) == 1
    _migrate(("metering", "0003_sums_by_hour"))
    _migrate()
    assert list(UsageEventRow.objects.values_list("day", flat=True)) == days[1:]
    for sums in (UsageRollup, UsageHour):
        assert list(sums.objects.order_by("day").values_list("day", "requests")) == [(day, 1) for day in days]


@pytest.mark.usefixtures("latest")
@pytest.mark.costly("migrates back and forth")
def test_rows_are_a_tenants_own_on_the_way_back_too() -> None:
    assert _protected() == (True, 1)
    _migrate(("metering", "0003_sums_by_hour"))
    assert _protected() == (True, 1)
    _migrate()
    assert _protected() == (True, 1)


def _protected() -> tuple[bool, int]:
    """Whether the events' table has row security, and how many policies."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relrowsecurity, (SELECT count(*) FROM pg_policy WHERE polrelid = pg_class.oid)"
            " FROM pg_class WHERE relname = %s",
            [UsageEventRow._meta.db_table],
        )
        enabled, policies = cursor.fetchone()
    return enabled, policies
