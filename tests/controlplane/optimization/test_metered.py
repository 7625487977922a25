"""Metered time of attempts: to the second and once, however late the poll is."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db.models import Sum

from controlplane.metering.hosting.observation import hosting_observe
from controlplane.metering.models import HostingHour, HostingSpan
from controlplane.optimization.models import Attempt

pytestmark = pytest.mark.django_db
NOON = int(dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC).timestamp())


def attempt(subject: str, started: int, ended: int | None) -> Attempt:
    def when(seconds: int) -> dt.datetime:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)

    return Attempt.objects.create(
        subject=subject,
        base_model="demo",
        machine="cpu",
        host="h",
        started_at=when(started),
        seen_at=when(ended or started),
        ended_at=when(ended) if ended else None,
    )


def counted() -> int:
    rows = HostingHour.objects.filter(kind="optimization", base_model="demo")
    return int(rows.aggregate(total=Sum("quantity_seconds"))["total"] or 0)


def test_one_that_came_and_went_between_two_looks_counts_to_the_second() -> None:
    hosting_observe(now=NOON)
    attempt("job-1.1", NOON + 10, NOON + 17)
    hosting_observe(now=NOON + 60)
    hosting_observe(now=NOON + 120)
    assert counted() == 7
    assert Attempt.objects.get().metered


def test_a_long_one_is_seen_under_way_and_ends_when_it_says() -> None:
    hosting_observe(now=NOON)
    row = attempt("job-1.1", NOON + 10, None)
    hosting_observe(now=NOON + 60)
    assert HostingSpan.objects.get(kind="optimization").started_at == NOON + 10
    hosting_observe(now=NOON + 3700)
    assert counted() == 3590
    Attempt.objects.filter(pk=row.pk).update(ended_at=dt.datetime.fromtimestamp(NOON + 4000, dt.UTC))
    # Nobody looked for an hour: the attempt's own word holds.
    hosting_observe(now=NOON + 8000)
    assert counted() == 3990
    assert not HostingSpan.objects.filter(kind="optimization", ended_at=None).exists()
