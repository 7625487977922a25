"""The pages of hosting, the fleet's bill, savings and blended prices."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, cast

import pytest
from django.apps import apps
from django.test import Client

from controlplane.billing.currency import money, money_rounded
from controlplane.billing.hosting_costs import hosting_costs
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import UsagePosting
from controlplane.billing.reports.list_prices import add_list_prices
from controlplane.billing.reports.models import InstancePrice
from controlplane.billing.services import hosting_price_set, price_book_create
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create

pytestmark = pytest.mark.django_db
DAY = dt.date(2026, 10, 25)
RANGE = {"start": "2026-10-25", "end": "2026-10-26"}


@pytest.fixture
def list_prices(db: None) -> None:
    add_list_prices(cast(Any, apps), cast(Any, None))


@pytest.fixture
def staff(db: None) -> Client:
    return signed_in(is_staff=True)


def signed_in(tenant: Tenant | None = None, **options: Any) -> Client:
    client = Client()
    client.force_login(
        user_create(email=f"{len(options)}@x.test", password="long-enough-7", tenant=tenant, **options)
    )
    return client


def hosted(kind: str, seconds: int, *, hour: int = 0, day: dt.date = DAY, **names: str) -> None:
    HostingHour.objects.create(kind=kind, day=day, hour=hour, quantity_seconds=seconds, **names)


def text_of(client: Client, path: str, asked: dict[str, Any], status: int = 200) -> str:
    answer = client.get(path, asked)
    assert answer.status_code == status
    return " ".join(answer.content.decode().split())


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (1_515_000_000, "$1.515"),
        (-2_500_000_000, "-$2.50"),
        (1_234_567_000_000_001, "$1,234,567.000000001"),
    ],
)
def test_an_amount_is_shown_to_its_last_digit(nano: int, text: str) -> None:
    assert money(nano, "USD") == text
    assert money(nano, "CHF") == text.replace("$", "") + " CHF"


@pytest.mark.parametrize(
    ("nano", "currency", "text"),
    [
        (1_234_567_890_123, "USD", "$1,234.57"),
        (-1_005_000_001, "EUR", "-€1.01"),
        (563_765_575, "USD", "$0.56"),
        (18_400, "GBP", "£0.0000184"),
        (1_500_000_000_000, "JPY", "1,500 JPY"),
        (-10_000_000, "USD", "-$0.01"),
        (0, "KWD", "0.000 KWD"),
        (1_500_000_000, "KWD", "1.500 KWD"),
    ],
)
def test_a_headline_has_the_currencys_digits(nano: int, currency: str, text: str) -> None:
    assert money_rounded(nano, currency) == text
    assert money(18_400, "JPY") == "0.0000184 JPY"


def test_a_tenant_sees_its_own_time_and_what_it_costs(tenant: Tenant) -> None:
    member = signed_in(tenant, role=Role.BILLING)
    assert "No hosting in this range" in text_of(member, "/t/acme/hosting/", RANGE)
    for hour in range(3):
        hosted("adapter", 3600, hour=hour, tenant="acme", adapter="bot", base_model="tiny", tier="placed")
        hosted("adapter", 3600, hour=hour, tenant="acme", adapter="bot", base_model="tiny", tier="stored")
        hosted("storage", 3600 * 10**9, hour=hour, tenant="acme", adapter="bot", base_model="tiny")
    hosted("adapter", 3600, tenant="globex", adapter="secret", base_model="tiny", tier="placed")
    hosted("copy", 3600, base_model="operators-own", deployment="d")
    page = text_of(member, "/t/acme/hosting/", RANGE)
    assert len(re.findall(r">\s*3\s*<", page)) == 6, (
        "placed, stored and GB-hours, in the sums and in the line"
    )
    assert "not billed" in page
    for others in ("secret", "operators-own", "$"):
        assert others not in page
    book = price_book_create(name="list")
    first = dt.date(2026, 1, 1)
    hosting_price_set(book=book, kind="adapter_hour", effective_from=first, nano=1_000_000_003)
    page = text_of(member, "/t/acme/hosting/", RANGE)
    assert page.count("$3.000000009") == 2
    hosting_price_set(book=book, kind="storage_gb_hour", effective_from=first, nano=5, adapter="acme/another")
    page = text_of(member, "/t/acme/hosting/", RANGE)
    assert "unpriced" in page
    assert "$" not in page, "no total while part of it has no price"
    assert "days as YYYY-MM-DD" in text_of(member, "/t/acme/hosting/", {"start": "x"}, 422)


def test_what_the_page_says_is_what_the_books_say(tenant: Tenant) -> None:
    book = price_book_create(name="list")
    for kind, nano in (("adapter_hour", 7), ("storage_gb_hour", 11), ("gpu_hour", 13)):
        hosting_price_set(book=book, kind=kind, effective_from=dt.date(2026, 1, 1), nano=nano)
    # Thirds of a price, so that each day's rounding shows.
    for day in range(5):
        for hour in range(2):
            at: dict[str, Any] = {"day": DAY + dt.timedelta(days=day), "hour": hour, "tenant": "acme"}
            hosted("adapter", 1201, adapter="a", base_model="tiny", tier="placed", **at)
            hosted("adapter", 1201, adapter="b", base_model="tiny", tier="placed", **at)
            hosted("storage", 1201 * 10**9 // 3, adapter="a", base_model="tiny", **at)
            hosted("gpu", 1201, base_model="tiny", deployment="d", **at)
    days: dict[str, Any] = {"start": DAY, "end": DAY + dt.timedelta(days=4)}
    usage_post(tenant="acme", **days)
    booked: dict[str, int] = {}
    for posting in UsagePosting.objects.filter(tenant="acme"):
        booked[posting.item] = booked.get(posting.item, 0) + posting.amount_nano
    found: dict[str, int] = {}
    for cost in hosting_costs(tenant="acme", **days):
        assert cost.nano is not None
        found[cost.item] = found.get(cost.item, 0) + cost.nano
    assert found == booked
    assert set(found) == {"adapter_hour", "storage_gb_hour", "gpu_hour"}


def test_staff_see_what_the_fleet_ran(staff: Client) -> None:
    hosted("copy", 7200, base_model="tiny", deployment="d")
    hosted("gpu", 4 * 3600, base_model="tiny", deployment="d")
    hosted("instance", 3600, instance_type="ml.g5.2xlarge", deployment="e")
    hosted("adapter", 3600, tenant="globex", adapter="x", tier="placed")
    page = text_of(staff, "/staff/hosting/", RANGE)
    for text in ("2 copy-hours", "4 GPU-hours", "1 instance-hours", "globex"):
        assert text in page
    assert "1 adapter-hours" in page
    assert "end must be 0 to" in text_of(
        staff, "/staff/hosting/", {"start": "2026-02-02", "end": "2026-01-01"}, 422
    )


@pytest.mark.usefixtures("list_prices")
def test_the_bill_is_shown_with_its_parts_and_what_has_no_price(staff: Client) -> None:
    hosted("instance", 3600, instance_type="ml.g5.2xlarge", deployment="e")
    hosted("instance", 1, day=DAY + dt.timedelta(days=1), instance_type="ml.g5.2xlarge", deployment="e")
    hosted("instance", 3600, instance_type="ml.unknown", deployment="e")
    for tenant in ("acme", "globex"):
        UsageRollup.objects.create(
            day=DAY,
            tenant=tenant,
            project="p",
            key_id="k",
            adapter="",
            alias="",
            base_model="b",
            backend="sagemaker",
            status="ok",
            requests=1,
            prompt_tokens=1,
            cached_tokens=0,
            completion_tokens=0,
        )
    page = text_of(staff, "/staff/fleet-bill/", RANGE)
    assert page.count("$0.7575<") == 2
    assert "$0.000420833" in page, "of a day on which nobody has a claim"
    assert "$1.515420833" in page
    assert "ml.unknown" in page
    assert "partly unpriced" in page
    assert "no price" not in text_of(staff, "/staff/fleet-bill/", RANGE | {"by": "memory"})
    assert "by must be one of" in text_of(staff, "/staff/fleet-bill/", RANGE | {"by": "x"}, 422)


@pytest.mark.usefixtures("list_prices")
def test_a_machines_price_is_added_on_its_page(staff: Client) -> None:
    price = {
        "instance_type": "ml.new",
        "region": "eu-west-1",
        "effective_from": "2026-01-01",
        "hour": "1.0000000015",
        "source": "a contract",
    }
    answer = staff.post("/staff/instance-prices/", price)
    assert answer.status_code == 422
    assert "at most nine decimals" in answer.content.decode()
    for wrong in (
        {"hour": "NaN"},
        {"hour": "1e400"},
        {"effective_from": "x"},
        {"region": "x"},
        {"hour": "-1"},
    ):
        assert staff.post("/staff/instance-prices/", price | {"hour": "1"} | wrong).status_code == 422, wrong
    page: Any = staff.post("/staff/instance-prices/", price | {"hour": "1.000000001"}, follow=True)
    assert "$1.000000001" in page.content.decode()
    assert InstancePrice.objects.get(instance_type="ml.new").hour_nano == 1_000_000_001
    again = staff.post("/staff/instance-prices/", price | {"hour": "2"})
    assert (again.status_code, "already" in again.content.decode()) == (422, True)


@pytest.mark.usefixtures("list_prices")
def test_savings_say_their_formula_and_their_price(staff: Client) -> None:
    page = text_of(staff, "/staff/savings/", {})
    assert "saving = 1 - shared / dedicated" in page
    asked = {
        "form": "estimate",
        "adapters": "100",
        "dedicated_type": "ml.g5.2xlarge",
        "shared_type": "ml.g5.12xlarge",
        "shared_instances": "",
    }
    page = text_of(staff, "/staff/savings/", asked)
    for text in ("95.32 %", "$151.50", "$7.09", "$1.515 per hour", "treated as us-east-1"):
        assert text in page
    page = text_of(staff, "/staff/savings/", asked | {"shared_type": "ml.none", "adapters": "100"}, 422)
    assert "has no price" in page
    assert "integer" in text_of(staff, "/staff/savings/", asked | {"adapters": "many"}, 422)
    hosted("adapter", 2 * 3600, tenant="acme", adapter="a", tier="placed", deployment="d")
    hosted("instance", 3600, instance_type="ml.g5.2xlarge", deployment="e")
    hosted("instance", 3600, instance_type="ml.unknown", deployment="e")
    measured = {**RANGE, "form": "measured", "dedicated_type": "ml.g5.2xlarge", "tier": "placed"}
    page = text_of(staff, "/staff/savings/", measured)
    for text in ("$3.03", "<dd>2</dd>", "ml.unknown", "partly unpriced"):
        assert text in page
    assert "50.00 %" not in page, "what nobody knows the price of saves nothing"


@pytest.mark.usefixtures("list_prices")
def test_two_instance_types_are_compared_by_a_pricing_plan(staff: Client) -> None:
    asked = {
        "form": "instances",
        "instance_type": "ml.g5.12xlarge",
        "compared_with": "ml.p4d.24xlarge",
        "plan": "savings_plan_1y",
    }
    page = text_of(staff, "/staff/savings/", asked)
    assert "79.88 %" in page, "the difference that AWS publishes"
    assert page.count("rate not published") == 2
    page = text_of(staff, "/staff/savings/", asked | {"plan": "on_demand"})
    assert "$7.09" in page
    assert "rate not published" not in page
    page = text_of(staff, "/staff/savings/", asked | {"plan": "on_demand", "compared_with": "ml.none"}, 422)
    assert "has no price" in page


@pytest.mark.usefixtures("list_prices")
def test_an_estimate_by_a_plan_needs_the_plans_rates(staff: Client) -> None:
    asked = {
        "form": "estimate",
        "adapters": "100",
        "dedicated_type": "ml.g5.2xlarge",
        "shared_type": "ml.g5.12xlarge",
        "plan": "savings_plan_1y",
    }
    page = text_of(staff, "/staff/savings/", asked, 422)
    assert "ml.g5.2xlarge" in page
    assert '<option value="savings_plan_1y" selected>' in page


@pytest.mark.usefixtures("list_prices")
def test_both_blended_prices_stand_beside_their_formula(staff: Client) -> None:
    asked = {"form": "blended", "instance_type": "ml.p5.48xlarge", "itl_p50_ms": "20", "concurrency": "64"}
    page = text_of(staff, "/staff/blended-price/", asked)
    for text in ("$2.453733", "3200.000 tokens per second", "(3 x input + output) / 4", "unpriced"):
        assert text in page
    page = text_of(staff, "/staff/blended-price/", asked | {"input_nano": "100", "output_nano": "400"})
    assert "$0.175<" in page
    assert "unpriced" not in page
    assert "above 0" in text_of(staff, "/staff/blended-price/", asked | {"itl_p50_ms": "0"}, 422)


@pytest.mark.usefixtures("list_prices")
def test_a_savings_plan_rate_is_added_and_used_by_page(staff: Client) -> None:
    page = text_of(staff, "/staff/instance-prices/", {})
    for text in ("79.88% below ml.p4d.24xlarge", "1-year SageMaker Savings Plan", "$37.688"):
        assert text in page
    asked = {
        "form": "blended",
        "instance_type": "ml.g5.12xlarge",
        "plan": "savings_plan_1y",
        "itl_p50_ms": "20",
        "concurrency": "64",
    }
    assert "ml.p4d.24xlarge" in text_of(staff, "/staff/blended-price/", asked, 422)
    row = {
        "instance_type": "ml.p4d.24xlarge",
        "region": "us-east-1",
        "plan": "savings_plan_1y",
        "effective_from": "2026-01-01",
        "hour": "10",
        "source": "our contract",
    }
    assert staff.post("/staff/instance-prices/", row).status_code == 302
    page = text_of(staff, "/staff/blended-price/", asked)
    for text in ("$2.012", "1-year SageMaker Savings Plan, rate from 1 Jan 2026", "our contract", "71.62%"):
        assert text in page
