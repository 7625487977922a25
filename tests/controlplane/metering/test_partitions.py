"""Expired days: their events are dropped, their sums stay, and late events are reported."""

from __future__ import annotations

import datetime as dt
import os
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, transaction

from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import DeadUsageEvent, UsageEventRow, UsageRollup
from controlplane.metering.partitions import PARENT
from controlplane.metering.services import keep_from, usage_drop_old, usage_ingest, usage_partitions_prepare
from controlplane.platform.row_security.grants import web_role_grant
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import stream_id, usage_event

pytestmark = pytest.mark.django_db(transaction=True)


ROLE = f"graftwork_partitions_{os.getpid()}"


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base")


def _ingest(*days: dt.date) -> int:
    events = [usage_event(f"r{day}", day=day).to_json().encode() for day in days]
    return usage_ingest(entries=[StreamEntry(stream_id(n), event) for n, event in enumerate(events)])


def test_old_days_are_dropped_and_their_sums_stay() -> None:
    oldest = keep_from()
    days = [oldest + dt.timedelta(days=number) for number in range(4)]
    assert _ingest(*days) == 4
    assert usage_drop_old(today=dt.datetime.now(dt.UTC).date() + dt.timedelta(days=2)) == 2
    assert sorted(UsageEventRow.objects.values_list("day", flat=True)) == days[2:]
    assert sorted(UsageRollup.objects.values_list("day", flat=True)) == days
    assert usage_drop_old() == 0


def test_an_event_of_a_dropped_day_is_dead_and_counts_nothing() -> None:
    assert _ingest(keep_from() - dt.timedelta(days=1), keep_from()) == 1
    assert "GRAFTWORK_USAGE_KEEP_DAYS" in DeadUsageEvent.objects.get().reason
    assert UsageRollup.objects.get().day == keep_from()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has partitions")
def test_a_partition_is_made_and_a_held_up_drop_put_off_while_somebody_reads() -> None:
    """A dump reads for as long as it takes."""
    old, new = keep_from(), keep_from() + dt.timedelta(days=40)
    assert _ingest(old) == 1
    settings = connection.settings_dict
    with psycopg.connect(
        dbname=settings["NAME"],
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"],
    ) as reader:
        reader.execute(f"SELECT count(*) FROM {PARENT}")
        assert _ingest(new) == 1
        assert usage_drop_old(today=dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1)) == 0
        assert UsageEventRow.objects.count() == 2
    assert usage_drop_old(today=dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1)) == 1


def test_the_coming_days_have_partitions_and_dead_letters_another_chance() -> None:
    usage_partitions_prepare()
    _ingest(keep_from() - dt.timedelta(days=1))
    DeadUsageEvent.objects.update(payload=usage_event("again").to_json(), stream_id=stream_id(7))
    out = StringIO()
    call_command("replay_usage", stdout=out)
    assert out.getvalue() == "1 events were ingested, 0 are still dead\n"
    assert UsageEventRow.objects.get().request_id == "again"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has partitions")
def test_each_day_has_a_partition_that_nobody_else_may_read() -> None:
    day = keep_from() + dt.timedelta(days=30)
    _ingest(day)
    partition = f"{PARENT}_{day:%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, relrowsecurity FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = %s::regclass",
            [PARENT],
        )
        found = dict(cursor.fetchall())
        cursor.execute(f"SELECT count(*) FROM {partition}")
        assert cursor.fetchone() == (1,)
        web_role_grant(name=ROLE)
        for scope, name, rows in (("acme", PARENT, 1), ("globex", PARENT, 0), ("acme", partition, 0)):
            with transaction.atomic():
                cursor.execute(f"SET LOCAL ROLE {ROLE}")
                cursor.execute("SELECT set_config('graftwork.tenant', %s, true)", [scope])
                cursor.execute(f"SELECT count(*) FROM {name}")
                assert cursor.fetchone() == (rows,), (scope, name)
    assert found[partition] is True
    assert all(found.values())
