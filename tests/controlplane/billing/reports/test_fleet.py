"""The fleet's bill: divided exactly, and held against an endpoint for each adapter."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from controlplane.billing.reports.fleet_bill import NOBODY, divide, fleet_attribution, fleet_bill
from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.billing.reports.savings import (
    blended_by_list_price,
    blended_by_throughput,
    saving_estimate,
    saving_measured,
)
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, service_account_create, user_create

REGION = "us-east-1"
DAY = dt.date(2026, 10, 25)
"""Berlin's clocks are set back: 25 hours there, 24 here."""
WEIGHTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 10**18), min_size=1)


@given(total=st.integers(0, 10**24), weights=WEIGHTS)
@pytest.mark.costly("a property over many programs")
def test_parts_add_up_and_none_is_a_unit_off(total: int, weights: dict[str, int]) -> None:
    parts = divide(total, weights)
    assert sum(parts.values()) == total
    assert set(parts) == set(weights)
    whole = sum(weights.values())
    for name, part in parts.items():
        exact = Fraction(total * weights[name], whole) if whole else Fraction(total, len(weights))
        assert abs(part - exact) < 1
        assert part == 0 or weights[name] > 0 or not whole
    assert parts == divide(total, dict(reversed(weights.items())))


@given(weights=WEIGHTS)
def test_who_has_more_never_gets_less(weights: dict[str, int]) -> None:
    parts = divide(10**9, weights)
    for one in weights:
        for other in weights:
            assert weights[one] <= weights[other] or parts[one] >= parts[other]


@pytest.mark.parametrize(("total", "weights"), [(-1, {"a": 1}), (1, {"a": -1}), (1, {})])
def test_what_cannot_be_divided_is_refused(total: int, weights: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be 0 or more|cannot divide"):
        divide(total, weights)


def _hosted(kind: str, seconds: int, *, hour: int = 0, day: dt.date = DAY, **names: str) -> None:
    HostingHour.objects.create(kind=kind, day=day, hour=hour, quantity_seconds=seconds, **names)


def _used(
    tenant: str, tokens: int, day: dt.date = DAY, *, key_id: str = "k", backend: str = "sagemaker"
) -> None:
    UsageRollup.objects.create(
        day=day,
        tenant=tenant,
        project="p",
        key_id=key_id,
        adapter="",
        alias="",
        base_model="b",
        backend=backend,
        status="ok",
        requests=1,
        prompt_tokens=tokens,
        cached_tokens=0,
        completion_tokens=0,
    )


@pytest.mark.django_db
@pytest.mark.usefixtures("list_prices")
@pytest.mark.parametrize(
    ("shared_type", "shared_instances", "percent"),
    [("ml.g5.12xlarge", 1, "95.32"), ("ml.g5.2xlarge", 5, "95.00"), ("ml.g5.2xlarge", 1, "99.00")],
)
def test_a_hundred_adapters_on_one_base_cost_95_percent_less(
    shared_type: str, shared_instances: int, percent: str
) -> None:
    """The slides' figure for one base and 100 adapters; they name neither machine. It comes out with four
    GPUs in one machine against a small one for each, and with five machines of one type."""
    saving = saving_estimate(
        adapters=100,
        dedicated_type="ml.g5.2xlarge",
        shared_type=shared_type,
        shared_instances=shared_instances,
        region=REGION,
        day=DAY,
    )
    assert saving.percent == percent
    assert saving.dedicated_nano == 151_500_000_000


@pytest.mark.django_db
@pytest.mark.usefixtures("list_prices")
def test_the_measured_saving_is_of_hours_that_were() -> None:
    for hour in range(24):
        _hosted("instance", 2 * 3600, hour=hour, instance_type="ml.g5.2xlarge", deployment="e")
        for adapter in ("a", "b", "c"):
            _hosted("adapter", 3600, hour=hour, adapter=adapter, tenant="acme", tier="placed", deployment="d")
        _hosted("adapter", 3600, hour=hour, adapter="a", tenant="acme", tier="placed", deployment="d2")
        _hosted("adapter", 3600, hour=hour, adapter="z", tenant="acme", tier="stored")
    asked: dict[str, Any] = {"start": DAY, "end": DAY, "dedicated_type": "ml.g5.2xlarge", "region": REGION}
    saving = saving_measured(**asked, tier="placed")
    assert saving.adapter_seconds == 3 * 86_400
    assert saving.percent == "33.33"
    assert saving_measured(**asked, tier="stored").percent == "-100.00"
    _hosted("instance", 3600, instance_type="ml.unknown", deployment="e")
    unknown = saving_measured(**asked, tier="placed")
    assert (unknown.unpriced, unknown.percent) == (("ml.unknown",), None)
    assert unknown.shared_nano == saving.shared_nano
    nothing = asked | {"start": dt.date(2026, 1, 1), "end": dt.date(2026, 1, 1)}
    assert saving_measured(**nothing, tier="placed").percent is None


@pytest.mark.django_db
@pytest.mark.usefixtures("list_prices")
def test_parts_of_the_bill_are_the_bill_by_each_measure() -> None:
    next_day, idle = DAY + dt.timedelta(days=1), DAY + dt.timedelta(days=2)
    for day, seconds in ((DAY, 3600), (next_day, 1), (idle, 7)):
        _hosted("instance", seconds, day=day, instance_type="ml.g5.2xlarge", deployment="e")
    for tenant, tokens in (("acme", 1), ("globex", 1), ("initech", 1)):
        _used(tenant, tokens)
        _hosted("adapter", 3600 * tokens, tenant=tenant, adapter=tenant, tier="placed")
        _hosted("storage", 10**9 * tokens, tenant=tenant, adapter=tenant)
    _used("acme", 5, next_day)
    bill = fleet_bill(start=DAY, end=idle, region=REGION)
    assert bill.days == {DAY: 1_515_000_000, next_day: 420_833, idle: 2_945_833}
    for by in ("tokens", "time", "memory"):
        found = fleet_attribution(start=DAY, end=idle, region=REGION, by=by)
        assert sum(found.parts.values()) == bill.total, by
        assert found.parts["globex"] == found.parts["initech"] == 505_000_000, by
        assert found.parts["acme"] == 505_000_000 + (420_833 if by == "tokens" else 0)
        assert found.parts[NOBODY] == 2_945_833 + (0 if by == "tokens" else 420_833)
    last = DAY + dt.timedelta(days=91)
    assert fleet_attribution(start=DAY, end=last, region=REGION, by="tokens").bill.total == bill.total
    with pytest.raises(InvalidInputError, match="0 to 91 days after start: split longer periods"):
        fleet_attribution(start=DAY, end=last + dt.timedelta(days=1), region=REGION, by="tokens")


@pytest.mark.django_db
@pytest.mark.usefixtures("list_prices")
def test_tokens_that_ran_elsewhere_claim_nothing_of_the_bill(tenant: Tenant) -> None:
    account = service_account_create(
        project=tenant.projects.get(slug="default"), name="fleet", role=Role.VIEWER
    )
    key, _ = api_key_create(tenant=tenant, name="own", scopes=["usage:write"], service_account=account)
    _hosted("instance", 3600, instance_type="ml.g5.2xlarge", deployment="e")
    _used("globex", 1)
    _used("initech", 9, backend="worker")
    _used("acme", 9, backend="vllm", key_id=key.pk)
    _used("acme", 9, key_id=key.pk)  # by its own word
    found = fleet_attribution(start=DAY, end=DAY, region=REGION, by="tokens")
    assert found.parts == {"globex": 1_515_000_000}


@pytest.mark.django_db
def test_prices_of_two_currencies_are_not_added_up() -> None:
    for instance_type, currency in (("ml.x", "USD"), ("ml.y", "EUR")):
        instance_price_set(
            instance_type=instance_type,
            region=REGION,
            source="a contract",
            effective_from=DAY,
            hour_nano=10,
            currency=currency,
        )
        _hosted("instance", 3600, instance_type=instance_type)
    with pytest.raises(InvalidInputError, match="EUR and USD"):
        fleet_attribution(start=DAY, end=DAY, region=REGION, by="tokens")
    with pytest.raises(InvalidInputError, match="EUR and USD"):
        saving_measured(start=DAY, end=DAY, dedicated_type="ml.x", region=REGION, tier="placed")


@pytest.mark.django_db
def test_a_saving_is_at_each_days_price() -> None:
    next_day = DAY + dt.timedelta(days=1)
    for day, nano in ((DAY, 10), (next_day, 30)):
        instance_price_set(
            instance_type="ml.x", region=REGION, source="a contract", effective_from=day, hour_nano=nano
        )
        _hosted("adapter", 3600, day=day, adapter="a", tenant="acme", tier="placed", deployment="d")
        _hosted("instance", 3600, day=day, instance_type="ml.x")
    saving = saving_measured(start=DAY, end=next_day, dedicated_type="ml.x", region=REGION, tier="placed")
    assert (saving.dedicated_nano, saving.shared_nano, saving.percent) == (40, 40, "0.00")


@pytest.mark.django_db
def test_a_price_holds_from_its_day_until_the_next_and_is_never_changed() -> None:
    price: dict[str, Any] = {"instance_type": "ml.x", "region": REGION, "source": "a contract"}
    instance_price_set(**price, effective_from=DAY, hour_nano=10)
    instance_price_set(**price, effective_from=DAY + dt.timedelta(days=1), hour_nano=20)
    for days in (-1, 0, 1, 2):
        _hosted("instance", 3600, day=DAY + dt.timedelta(days=days), instance_type="ml.x")
    bill = fleet_bill(start=DAY - dt.timedelta(days=1), end=DAY + dt.timedelta(days=2), region=REGION)
    assert sorted(bill.days.values()) == [10, 20, 20]
    assert bill.unpriced == ("ml.x",)
    with pytest.raises(ConflictError):
        instance_price_set(**price, effective_from=DAY, hour_nano=11)
    for wrong in ({"hour_nano": -1}, {"source": " "}, {"region": "x"}, {"instance_type": "A B"}):
        with pytest.raises(InvalidInputError):
            instance_price_set(**(price | {"effective_from": dt.date(2020, 1, 1), "hour_nano": 1} | wrong))


def test_blended_prices_by_both_formulas() -> None:
    price, throughput = blended_by_throughput(
        hour_nano=113_068_000_000, itl_p50_ms=Decimal(20), concurrency=64, discount=Decimal("0.25")
    )
    assert throughput == 3200
    assert f"{price:.6f}" == f"{Decimal('84.801') / (Decimal(3200) * 3600 / 1_000_000) / 4:.6f}" == "1.840299"
    assert blended_by_list_price(input_nano=100, output_nano=400) == Decimal("0.175")
    for wrong in ({"itl_p50_ms": Decimal(0)}, {"concurrency": 0}, {"discount": Decimal(1)}):
        asked: dict[str, Any] = {
            "hour_nano": 1,
            "itl_p50_ms": Decimal(1),
            "concurrency": 1,
            "discount": Decimal(0),
        }
        with pytest.raises(InvalidInputError):
            blended_by_throughput(**(asked | wrong))


@pytest.mark.django_db
@pytest.mark.usefixtures("list_prices")
def test_staff_read_it_by_rest() -> None:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    prices = client.get("/api/v1/instance-prices").json()["results"]
    assert {"us-east-1"} == {price["region"] for price in prices}
    assert all("treated as us-east-1" in price["source"] for price in prices)
    named = {price["instance_type"] for price in prices if price["plan"] == "on_demand"}
    assert {"ml.g5.12xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"} <= named
    asked: dict[str, Any] = {
        "adapters": 100,
        "dedicated_type": "ml.g5.2xlarge",
        "shared_type": "ml.g5.12xlarge",
    }
    answer = client.get("/api/v1/fleet/savings/estimate", asked).json()
    assert (answer["percent"], answer["dedicated"], answer["shared"]) == (
        "95.32",
        "151.500000000",
        "7.090000000",
    )
    assert answer["dedicated_price"]["hour_nano"] == 1_515_000_000
    asked = {"instance_type": "ml.p5.48xlarge", "itl_p50_ms": "20", "concurrency": 64}
    answer = client.get("/api/v1/fleet/blended-price", asked | {"input_nano": 100, "output_nano": 400}).json()
    assert (answer["by_throughput"], answer["by_list_price"]) == ("2.453733", "0.175000")
    answer = client.get("/api/v1/fleet/blended-price", asked | {"instance_type": "ml.none"})
    assert (answer.status_code, answer.json()["errors"][0]["attr"]) == (400, "instance_type")
    days = {"start": str(DAY), "end": str(DAY)}
    _hosted("instance", 3600, instance_type="ml.g5.2xlarge", deployment="e")
    answer = client.get("/api/v1/fleet/attribution", days).json()
    assert answer["parts"] == [{"tenant": "", "amount": "1.515000000"}]
    answer = client.get("/api/v1/fleet/savings", days | {"dedicated_type": "ml.g5.2xlarge"}).json()
    assert (answer["shared"], answer["percent"]) == ("1.515000000", None)
