"""Health and REST report the nightly checks' findings, and a check that did not run."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import Any

import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded
from django.test import Client
from django.utils import timezone

from controlplane.billing.ledger import posting
from controlplane.billing.tasks import nightly as billing_nightly
from controlplane.metering.models import UsageRollup
from controlplane.metering.reconcile import days_checked, sums_check
from controlplane.metering.services import keep_from
from controlplane.metering.tasks import nightly as metering_nightly
from controlplane.operations.health.base import Finding, Level
from controlplane.operations.health.parts import health_report
from controlplane.platform import task_signs
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create

pytestmark = pytest.mark.django_db
DAY_S = 86_400


def nightly_finding() -> Finding:
    return next(part.finding for part in health_report().parts if part.name == "nightly_checks")


def used(days_ago: int) -> None:
    """Sums of a day without the events that they would be made of."""
    UsageRollup.objects.create(
        day=timezone.now().date() - dt.timedelta(days=days_ago),
        tenant="acme",
        project="p",
        key_id="k1",
        adapter="",
        alias="",
        base_model="tiny",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=0,
    )


def ran(redis_url: str, check: str, *, ago_s: float, **more: Any) -> float:
    """Record a check and return its time."""
    at = time.time() - ago_s
    value = {"at": at, "start": "2026-11-01", "end": "2026-11-03", "differing": 0, "examples": []}
    redis.Redis.from_url(redis_url).hset(task_signs.CHECKS, check, json.dumps({**value, **more}))
    return at


def test_without_usage_nothing_is_missed_and_old_usage_wants_a_check() -> None:
    assert nightly_finding().level is Level.UNKNOWN
    used(0)
    assert nightly_finding().level is Level.UNKNOWN
    used(5)
    late = nightly_finding()
    assert (late.level, late.text) == (Level.WARN, "A check has not run for 48 hours.")
    assert "metering.nightly" in late.todo


def test_both_tasks_say_what_they_found(tenant: Tenant, redis_url: str) -> None:
    assert metering_nightly() == 0
    billing_nightly()
    agreed = nightly_finding()
    assert agreed.level is Level.OK
    assert len(agreed.details) == 2
    assert "usage against its events" in agreed.details[0]
    used(1)
    assert metering_nightly() == 1
    drift = nightly_finding()
    assert drift.level is Level.WARN
    assert "1 total does not match" in drift.text
    assert "check_usage" in drift.todo
    assert any("'key_id': 'k1'" in line for line in drift.details), "which one"


def test_what_differs_is_told_until_it_is_mended(tenant: Tenant, redis_url: str) -> None:
    today = timezone.now().date()
    ago = [today - dt.timedelta(days=days) for days in range(7)]
    billing_nightly()
    used(5)
    # The night of three days ago; since then a night's days have gone past the one that differs.
    assert len(sums_check(start=ago[6], end=ago[4])) == 1
    assert metering_nightly() == 1
    assert nightly_finding().level is Level.WARN
    assert metering_nightly() == 1, "nor does a second one forget it"
    assert days_checked(today) == (ago[6], ago[1])
    UsageRollup.objects.all().delete()
    assert metering_nightly() == 0
    assert nightly_finding().level is Level.OK
    assert days_checked(today) == (ago[3], ago[1])


def test_no_check_looks_at_days_whose_events_are_dropped(redis_url: str) -> None:
    ran(redis_url, task_signs.USAGE_CHECK, ago_s=DAY_S, start="2020-01-01", differing=1)
    assert days_checked(timezone.now().date())[0] == keep_from()


def test_where_redis_does_not_tell_a_check_looks_at_all_that_is_kept() -> None:
    usual = dt.date(2026, 11, 20)
    oldest, url = dt.date(2026, 1, 1), "redis://127.0.0.1:1/0"
    assert task_signs.check_from(url, check=task_signs.USAGE_CHECK, usual=usual, oldest=oldest) == oldest


def test_books_that_differ_or_cannot_be_compared_are_told(
    tenant: Tenant, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metering_nightly()
    day = timezone.now().date() - dt.timedelta(days=1)
    used(1)

    def compared(*, tenant: str, start: dt.date, end: dt.date) -> dict[dt.date, tuple[int, int]]:
        return {day: (1, 2)} if tenant == "globex" else 1 // 0  # type: ignore[return-value]

    UsageRollup.objects.create(
        day=day,
        tenant="globex",
        project="p",
        key_id="k",
        adapter="",
        alias="",
        base_model="tiny",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=0,
    )
    monkeypatch.setattr(posting, "books_drift", compared)
    billing_nightly()
    told = nightly_finding()
    assert (told.level, told.text) == (Level.WARN, "2 totals do not match their source records.")
    assert "ledger of acme could not be compared with usage" in told.details
    assert f"ledger of globex on {day}: 1 booked, 2 expected" in told.details


@pytest.mark.parametrize("step", ["books_drift", "usage_post"])
def test_a_round_whose_time_is_over_ends(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used(1)

    def over(**_names: object) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(posting, step, over)
    with pytest.raises(SoftTimeLimitExceeded):
        billing_nightly()


@pytest.mark.parametrize("late", [task_signs.USAGE_CHECK, task_signs.BOOKS_CHECK])
def test_a_check_that_has_not_run_for_two_days_is_a_warning(late: str, redis_url: str) -> None:
    used(5)
    for check in (task_signs.USAGE_CHECK, task_signs.BOOKS_CHECK):
        ran(redis_url, check, ago_s=1.9 * DAY_S)
    assert nightly_finding().level is Level.OK
    at = ran(redis_url, late, ago_s=2.1 * DAY_S)
    missed = nightly_finding()
    assert missed.level is Level.WARN
    assert missed.since is not None
    assert missed.since.timestamp() == pytest.approx(at, abs=0.001)


def test_staff_read_it_by_rest_and_on_the_page(redis_url: str) -> None:
    client = Client()
    client.force_login(user_create(email="s@x.test", password="long-enough-7", is_staff=True))
    assert client.get("/api/v1/health/checks").json() == {"away": "", "checks": []}
    ran(redis_url, task_signs.USAGE_CHECK, ago_s=60, differing=2, examples=["<b>UsageRollup</b>"])
    (told,) = client.get("/api/v1/health/checks").json()["checks"]
    assert (told["name"], told["start"], told["end"]) == ("usage", "2026-11-01", "2026-11-03")
    assert (told["differing"], told["examples"]) == (2, ["<b>UsageRollup</b>"])
    page = client.get("/staff/health/").content.decode()
    assert "2 totals do not match" in page
    assert "&lt;b&gt;UsageRollup" in page
