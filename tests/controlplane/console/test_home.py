"""The home page: figures of its range, items that need attention, and the first steps."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.billing.documents.pdfs import html
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.ledger.credits import payment_record
from controlplane.catalog.models import BaseModel
from controlplane.console.bars import HEIGHT
from controlplane.metering.models import UsageHour, UsageRollup
from controlplane.metering.requests import ttft_ms_of
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import ApiKey, Membership
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, tenant_create, user_create
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.console.conftest import HOSTILE, Team, make_adapter, make_team, use
from tests.controlplane.metering.event_log import logged


@pytest.fixture
def dev(client: Client, acme: Team) -> Client:
    Membership.objects.filter(user=acme.user).update(role=Role.OWNER)
    client.force_login(acme.user)
    return client


def text_of(client: Client, path: str = "/t/acme/") -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def figure_text(page: str, name: str) -> str:
    """The text of a figure."""
    (found,) = re.findall(rf'<dd data-testid="{name}">(.*?)</dd>', page, re.S)
    return re.sub(r"<[^>]+>", " ", found)


@pytest.mark.usefixtures("priced")
def test_figures_are_those_of_the_range(dev: Client, base: BaseModel, acme: Team, globex: Team) -> None:
    use(globex, base, "globex-secret", days=7)
    UsageRollup.objects.filter(tenant="acme").update(requests=10, prompt_tokens=1000, completion_tokens=500)
    today = timezone.now().date()
    row = UsageRollup.objects.filter(tenant="acme", day=today).first()
    assert row is not None
    UsageRollup.objects.filter(pk=row.pk).update(status="error")
    for number, ttft in enumerate([50.0, 100.0, 3000.0]):
        logged("acme", timezone.now(), number, ttft_ms=ttft)
    logged("globex", timezone.now(), 9, ttft_ms=9.0)
    page = text_of(dev, "/t/acme/?days=7")
    # 7 days of the adapter and 6 of the base alone.
    assert "19.5k" in figure_text(page, "home-tokens")
    assert "13.0k in, 6,500 out" in figure_text(page, "home-tokens")
    assert figure_text(page, "home-errors").split()[:2] == ["10", "7.69"]
    assert "100 ms" in figure_text(page, "home-ttft")
    assert "3.00 s" in figure_text(page, "home-ttft")
    assert "$0.00" in figure_text(page, "home-spend")
    assert page.count("<rect") >= 7 + 7 + 1
    assert "60.0k" not in page
    month = text_of(dev, "/t/acme/?days=30")
    assert "39.0k" in figure_text(month, "home-tokens")


@pytest.mark.usefixtures("priced")
def test_a_day_of_which_some_has_no_price_is_no_low_bar(dev: Client, acme: Team) -> None:
    today = timezone.now().date()
    priced = text_of(dev, "/t/acme/?days=7")
    assert "data-unpriced" not in priced
    assert re.search(rf"<title>{today}: \$[0-9.]+</title>", priced)
    UsageRollup.objects.create(
        day=today - dt.timedelta(days=1),
        tenant="acme",
        project="default",
        key_id="k",
        adapter="",
        alias="",
        base_model="unpriced",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=9,
        cached_tokens=0,
        completion_tokens=0,
    )
    page = text_of(dev, "/t/acme/?days=7")
    (bar,) = re.findall(r'<rect [^>]*y="([0-9.]+)"[^>]*height="([0-9.]+)"[^>]*data-unpriced><title>', page)
    assert (float(bar[0]), float(bar[1])) == (0, HEIGHT)
    assert "plus unpriced usage</title>" in page
    assert "partly unpriced" in figure_text(page, "home-spend")
    assert "plus unpriced usage on 1 pale bar" in figure_text(page, "home-spend")


def test_today_is_shown_by_the_hour(dev: Client, acme: Team) -> None:
    today = timezone.now().date()
    UsageHour.objects.create(
        day=today,
        hour=3,
        tenant="acme",
        project="default",
        key_id="k",
        adapter="",
        alias="",
        base_model="tiny",
        backend="worker",
        status="ok",
        requests=4,
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=5,
    )
    page = text_of(dev, "/t/acme/?days=1")
    assert "12" in figure_text(page, "home-tokens")
    assert f"{today}T03:00Z: 12" in page


def test_a_tenant_with_nothing_is_led_and_not_told_of_money_it_has_not_spent(
    client: Client, base: BaseModel
) -> None:
    tenant = tenant_create(slug="fresh", name=HOSTILE[:200])
    client.force_login(
        user_create(email="o@x.test", password="long-enough-7", tenant=tenant, role=Role.OWNER)
    )
    page = text_of(client, "/t/fresh/")
    assert "<script>alert" not in page
    assert page.count("step-done") == 0
    assert "no data" in page
    assert 'data-testid="to-do"' not in page
    assert "curl -N" in page


def test_each_step_is_done_when_it_is(client: Client, base: BaseModel) -> None:
    team = make_team("fresh", "Fresh")
    client.force_login(team.user)

    def done() -> set[str]:
        fragment = text_of(client, "/t/fresh/first-steps")
        found = set(re.findall(_DONE, fragment))
        assert ("hx-trigger" in fragment) == (len(found) < 4), "it asks again until all is done"
        return found

    assert done() == {"key"}
    ApiKey.objects.update(revoked_at=timezone.now())
    assert done() == set()
    ApiKey.objects.update(revoked_at=None)
    adapter = make_adapter(team, base, "bot", "validating")
    assert done() == {"key", "registered"}
    AdapterVersion.objects.filter(adapter=adapter).update(
        status="ready", sha256="ab" * 32, uri="file:///a/", rank=2
    )
    assert done() == {"key", "registered", "ready"}
    use(team, base, "bot", days=1)
    assert done() == {"key", "registered", "ready", "request"}
    assert 'data-testid="checklist"' not in text_of(client, "/t/fresh/")


_DONE = r'step-done" data-testid="step-(\w+)"'


def test_what_needs_somebody_is_named(dev: Client, acme: Team, globex: Team, base: BaseModel) -> None:
    soon = timezone.now() + dt.timedelta(days=3)
    api_key_create(tenant=acme.tenant, name="ends soon", scopes=["inference"], expires_at=soon)
    api_key_create(tenant=globex.tenant, name="globex ends", scopes=["inference"], expires_at=soon)
    make_adapter(globex, base, "globex-refused", "refused", "wrong shape")
    tenant_limits_set(tenant=acme.tenant, budget_nano=0, prepaid_stop=True)
    page = text_of(dev)
    assert "tone-of-voice v1 was refused" in page
    assert "Key “<bdi>ends soon</bdi>” expires on" in page
    assert "100 % of the budget" in page
    assert "requests are rejected." in page
    assert "globex" not in page
    Membership.objects.filter(user=acme.user).update(role=Role.VIEWER)
    page = text_of(dev)
    assert "tone-of-voice v1 was refused" in page
    for hidden in ("ends soon", "of the budget", "prepaid", 'data-testid="budget-state"'):
        assert hidden not in page, hidden


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize("bases", [("tiny",), ("tiny", "unpriced")])
def test_prepaid_money_that_ends_soon_is_told_whatever_has_no_price(
    dev: Client, acme: Team, bases: tuple[str, ...]
) -> None:
    tenant_limits_set(tenant=acme.tenant, prepaid_stop=True)
    for base in bases:
        UsageRollup.objects.create(
            day=timezone.now().date(),
            tenant="acme",
            project="default",
            key_id="another",
            adapter="",
            alias="",
            base_model=base,
            backend="worker",
            status="ok",
            requests=1,
            prompt_tokens=10**9,
            cached_tokens=0,
            completion_tokens=0,
        )
    # 10**9 tokens at 150 nano were used in a week: less is left.
    payment_record(tenant=acme.tenant, amount_nano=10**11)
    assert "At the current rate it lasts" in text_of(dev)


@pytest.mark.usefixtures("priced")
def test_an_unpaid_invoice_is_due_until_it_is_paid(dev: Client, acme: Team) -> None:
    month = dt.date(2026, 1, 1)
    UsageRollup.objects.create(
        day=month,
        tenant="acme",
        project="default",
        key_id=acme.key.pk,
        adapter="",
        alias="",
        base_model="tiny",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=10**7,
        cached_tokens=0,
        completion_tokens=0,
    )
    parties_state()
    invoice = invoice_finalize(invoice=invoice_draft(tenant="acme", month=month))
    assert "acme backend" in text_of(dev, f"/t/acme/billing/invoices/{invoice.pk}/")
    assert "acme backend" in html(InvoiceDocument(invoice))
    assert "1 invoice is due" in text_of(dev)
    page = text_of(dev, "/t/acme/billing/")
    assert re.findall(rf'data-testid="state-{invoice.pk}">(\w+)<', page) == ["due"]
    payment_record(tenant=acme.tenant, amount_nano=invoice.due_nano, invoice=invoice)
    assert "is due" not in text_of(dev)
    page = text_of(dev, "/t/acme/billing/")
    assert re.findall(rf'data-testid="state-{invoice.pk}">(\w+)<', page) == ["paid"]


def test_it_costs_as_many_queries_with_many_adapters(dev: Client, base: BaseModel, acme: Team) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            text_of(dev)
        return len(found)

    queries()
    few = queries()
    adapters = Adapter.objects.bulk_create(
        Adapter(tenant=acme.tenant, name=f"bot-{number}", base_model=base) for number in range(200)
    )
    AdapterVersion.objects.bulk_create(
        AdapterVersion(adapter=adapter, number=1, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2)
        for adapter in adapters
    )
    assert queries() <= few <= 34
    assert "201 ready" in text_of(dev)


def test_times_to_the_first_token_are_shown_by_day_where_there_are_any(
    dev: Client, acme: Team, globex: Team
) -> None:
    page = text_of(dev, "/t/acme/?days=7")
    assert "home-ttft-chart" not in page, "nothing was timed: nothing is drawn"
    today = timezone.now().astimezone(dt.UTC).replace(hour=0, minute=0, second=1)
    for number, ttft in enumerate([50.0, 100.0, 3000.0, None]):
        logged("acme", today, number, ttft_ms=ttft)
    logged("acme", today - dt.timedelta(days=2, seconds=1), ttft_ms=1500.0)
    logged("globex", today - dt.timedelta(days=1), ttft_ms=9.0)
    page = text_of(dev, "/t/acme/?days=7")
    drawn = page.partition("home-ttft-chart")[2].partition("</svg>")[0]
    titles = re.findall(r"<title>(.*?)</title>", drawn)
    two_ago = f"{today - dt.timedelta(days=2):%Y-%m-%d}: p50 1.50 s, p95 1.50 s, newest 1 requests"
    now = f"{today:%Y-%m-%d}: p50 100 ms, p95 3.00 s, newest 3 requests"
    assert titles == [two_ago, now] * 2, "95th percentiles, and medians over them"
    assert [drawn.count(f'class="bar-{look}"') for look in (0, 1)] == [2, 2]
    hours = text_of(dev, "/t/acme/figures?days=1").partition("home-ttft-chart")[2].partition("</svg>")[0]
    assert f"{today:%Y-%m-%d}T00:00Z: p50 100 ms" in hours
    assert hours.count("<rect") == 2


def test_a_days_times_are_of_its_newest_attempts(db: None) -> None:
    day = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    for number in range(6):
        logged("acme", day + dt.timedelta(seconds=number), ttft_ms=None if number == 5 else float(number))
    logged("acme", day + dt.timedelta(days=1), ttft_ms=77.0)
    spans = [(day, day + dt.timedelta(days=1)), (day - dt.timedelta(days=1), day)]
    assert ttft_ms_of(tenant="acme", spans=spans, most=3) == [[3.0, 4.0], []]
    assert ttft_ms_of(tenant="acme", spans=spans[:1], most=500) == [[0.0, 1.0, 2.0, 3.0, 4.0]]
    assert ttft_ms_of(tenant="acme", spans=[], most=3) == []
