"""The pages of monitoring and alarms, for a tenant's members and for staff."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.test import Client

from controlplane.adapters.models import Adapter
from controlplane.monitoring.models import Alarm, State
from controlplane.tenants.models import Tenant, User
from tests.controlplane.monitoring.traffic import attempt, ingest

pytestmark = pytest.mark.django_db
FORM = {
    "name": "failures",
    "adapter": "support-bot",
    "metric": "error_rate",
    "comparison": "GreaterThanThreshold",
    "threshold": "5",
    "period_seconds": "300",
    "evaluation_periods": "3",
    "datapoints_to_alarm": "2",
    "treat_missing_data": "missing",
    "notify_on": ["ALARM"],
    "email": "on",
    "enabled": "on",
}


@pytest.fixture
def page(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


def text_of(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()


def traffic() -> None:
    at = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=3)
    ingest(attempt(at, ttft_ms=200.0, itl_ms=25.0, endpoint=f"copy-{number % 2}") for number in range(8))
    ingest([attempt(at, status="error", error_code="upstream_timeout", ttft_ms=None)])
    ingest([attempt(at, status="client_error", error_code="bad_request", ttft_ms=None)])


@pytest.mark.parametrize("span", ["hour", "day", "week", "month"])
def test_an_adapter_s_page_shows_figures_charts_copies_and_errors(page: Client, span: str) -> None:
    traffic()
    text = text_of(page, f"/t/acme/monitoring/support-bot/?range={span}")
    assert re.search(r'data-testid="total-requests">10<', text)
    assert re.search(r'data-testid="total-failed">1<small>10.00', text)
    for chart in ("requests", "tokens", "ttft", "itl"):
        assert f'data-testid="chart-{chart}"' in text
    assert text.count('class="bar-danger"') == 1
    ttft = text[text.index('data-testid="ttft-p95"') :][:80]
    shown = re.search(r">(\d+) ms", ttft)
    assert shown is not None
    assert int(shown[1]) == pytest.approx(200, rel=0.02)
    assert "copy-0" in text
    assert "copy-1" in text
    assert text.index("upstream_timeout") < text.index("bad_request")


def test_an_adapter_without_requests_says_so(page: Client) -> None:
    assert 'data-testid="monitoring-none"' in text_of(page, "/t/acme/monitoring/support-bot/")
    assert page.get("/t/acme/monitoring/nothing/").status_code == 404


def test_an_unknown_range_shows_the_day(page: Client) -> None:
    text = text_of(page, "/t/acme/monitoring/?range=year")
    assert re.search(r'range=day"[^>]* aria-current="true"', text)


def test_the_list_has_every_adapter_and_the_alarms_that_ring(page: Client, acme: Tenant) -> None:
    traffic()
    base = Adapter.objects.get(tenant=acme).base_model
    Adapter.objects.create(tenant=acme, name="idle", base_model=base)
    page.post("/t/acme/alarms/", FORM)
    Alarm.objects.update(state=State.ALARM)
    text = text_of(page, "/t/acme/monitoring/")
    assert 'data-testid="monitoring-support-bot"' in text
    assert 'data-testid="monitoring-idle"' in text
    assert 'data-testid="ringing"' in text
    assert "idle" not in text_of(page, "/t/acme/monitoring/?search=support")


def test_an_alarm_is_created_changed_and_deleted_by_forms(page: Client) -> None:
    answer = page.post("/t/acme/alarms/", FORM, follow=True)
    alarm = Alarm.objects.get()
    text = answer.content.decode()
    assert "2 of 3 periods of 300 s" in text
    assert (alarm.notify_on, alarm.email, alarm.enabled) == (["ALARM"], True, True)
    seen = re.search(r'name="seen" value="(\w+)"', text)
    assert seen is not None
    path = f"/t/acme/alarms/{alarm.pk}/"
    without = {name: value for name, value in FORM.items() if name not in ("enabled", "notify_on")}
    page.post(path, without | {"threshold": "7.5", "adapter": "", "seen": seen[1]})
    alarm.refresh_from_db()
    assert (alarm.threshold, alarm.adapter, alarm.enabled, alarm.notify_on) == (7.5, None, False, [])
    again = page.post(path, FORM | {"seen": seen[1]})
    assert again.status_code == 422, "somebody else's change is not overwritten"
    assert page.post(f"{path}delete").status_code == 302
    assert not Alarm.objects.exists()


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"threshold": "much"}, "threshold", "valid number"),
        ({"threshold": "101"}, "threshold", "at most 100 percent"),
        ({"datapoints_to_alarm": "4"}, "datapoints_to_alarm", "evaluation_periods"),
        ({"adapter": "nothing"}, "name", "nothing"),
    ],
)
def test_a_refused_form_keeps_its_values_and_says_why(
    page: Client, changes: dict[str, str], field: str, said: str
) -> None:
    answer = page.post("/t/acme/alarms/", FORM | changes)
    assert answer.status_code == 422
    text = answer.content.decode()
    error = text[text.index(f'id="error-{field}"') :][:300]
    assert said in error
    assert not Alarm.objects.exists()


def test_staff_see_any_tenant_s_adapter_and_have_alarms_of_their_own(
    client: Client, staff: User, acme: Tenant
) -> None:
    client.force_login(staff)
    traffic()
    assert 'data-testid="monitoring-support-bot"' in text_of(client, "/staff/tenants/acme/monitoring/")
    text = text_of(client, "/staff/tenants/acme/monitoring/?adapter=support-bot&range=hour")
    assert re.search(r'data-testid="total-requests">10<', text)
    assert "/staff/alarms/?adapter=acme%2Fsupport-bot#new" in text
    form = FORM | {"adapter": "acme/support-bot", "webhook_tenant": "acme"}
    answer = client.post("/staff/alarms/", form, follow=True)
    assert "acme/support-bot" in answer.content.decode()
    alarm = Alarm.objects.get()
    assert (alarm.tenant, alarm.webhook_tenant) == (None, acme)
    assert client.post(f"/staff/alarms/{alarm.pk}/delete").status_code == 302
