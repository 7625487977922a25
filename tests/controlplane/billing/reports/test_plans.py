"""Rates by plan: those of the table, those that follow from another type's, and prices by them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.billing.reports.instance_rates import InstancePrices, instance_saving, rate_in_force
from controlplane.billing.reports.models import Plan
from controlplane.billing.reports.savings import blended_prices, saving_estimate
from controlplane.errors import InvalidInputError
from controlplane.tenants.services import user_create

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("list_prices")]
REGION = "us-east-1"
DAY = dt.date(2026, 11, 1)
G5, P4D, P5 = "ml.g5.12xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"
SAVINGS_PLAN = Plan.SAVINGS_PLAN_1Y


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def add(instance_type: str, **values: Any) -> None:
    shared: dict[str, Any] = {"region": REGION, "effective_from": DAY, "source": "our contract"}
    instance_price_set(**shared | {"instance_type": instance_type, "plan": SAVINGS_PLAN, **values})


def test_the_published_saving_comes_out_of_the_table() -> None:
    """AWS states the relation of the two Savings Plan rates, and neither rate."""
    found = instance_saving(instance_type=G5, compared_with=P4D, region=REGION, plan=SAVINGS_PLAN, day=DAY)
    assert (found.percent, found.rate, found.reference) == ("79.88", None, None)
    assert found.effective_from == dt.date(2024, 7, 9)
    assert "Machine Learning Blog" in found.source
    on_demand = instance_saving(
        instance_type=G5, compared_with=P4D, region=REGION, plan=Plan.ON_DEMAND, day=DAY
    )
    assert on_demand.percent == "81.19", "1 - 7.09 / 37.688"


def test_a_rate_follows_from_the_reference_and_own_rates_take_its_place() -> None:
    add(P4D, hour_nano=10_000_000_000)
    rate = InstancePrices().on(DAY, instance_type=G5, region=REGION, plan=SAVINGS_PLAN)
    assert rate is not None
    assert (rate.hour_nano, rate.effective_from) == (2_012_000_000, DAY)
    assert "79.88% below ml.p4d.24xlarge" in rate.source
    assert "our contract" in rate.source
    saving = saving_estimate(
        adapters=1,
        dedicated_type=P4D,
        shared_type=G5,
        shared_instances=1,
        region=REGION,
        day=DAY,
        plan=SAVINGS_PLAN,
    )
    assert saving.percent == "79.88"
    add(G5, hour_nano=3_000_000_000)
    found = instance_saving(instance_type=G5, compared_with=P4D, region=REGION, plan=SAVINGS_PLAN, day=DAY)
    assert found.percent == "70.00"


def test_blended_prices_use_the_plans_rate_and_say_the_discount() -> None:
    asked: dict[str, Any] = {
        "instance_type": P5,
        "region": REGION,
        "itl_p50_ms": Decimal(20),
        "concurrency": 64,
        "day": DAY,
    }
    with pytest.raises(InvalidInputError, match="no 1-year SageMaker Savings Plan rate"):
        blended_prices(**asked, plan=SAVINGS_PLAN, discount=Decimal(0))
    add(P5, hour_nano=84_801_000_000)
    found = blended_prices(**asked, plan=SAVINGS_PLAN, discount=Decimal(0))
    listed = blended_prices(**asked, discount=Decimal("0.25"))
    assert found.discount == listed.discount == Decimal("0.25")
    assert found.by_throughput == listed.by_throughput
    assert (found.price.plan, listed.price.plan) == ("savings_plan_1y", "on_demand")
    with pytest.raises(InvalidInputError, match="exclude each other"):
        blended_prices(**asked, plan=SAVINGS_PLAN, discount=Decimal("0.1"))


def test_the_error_names_the_rate_that_is_missing() -> None:
    with pytest.raises(InvalidInputError, match=r"'ml\.p4d\.24xlarge' has no .* is 79\.88% below it: add"):
        rate_in_force(instance_type=G5, region=REGION, plan=SAVINGS_PLAN)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"plan": "spot", "hour_nano": 1},
        {"hour_nano": 1, "reference_type": P4D, "percent_below": Decimal(1)},
        {"reference_type": P5, "percent_below": Decimal(1)},
        {"reference_type": P4D},
        {"reference_type": P4D, "percent_below": Decimal(100)},
    ],
)
def test_a_row_has_a_price_or_a_difference(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        add(P5, **wrong)


def test_rest_tells_rate_source_and_date(staff: Client) -> None:
    row = {"instance_type": P4D, "region": REGION, "plan": "savings_plan_1y", "effective_from": str(DAY)}
    added = staff.post(
        "/api/v1/instance-prices",
        row | {"hour_nano": 10**10, "source": "our contract"},
        content_type="application/json",
    )
    assert (added.status_code, added.json()["plan"]) == (201, "savings_plan_1y")
    asked: dict[str, Any] = {"instance_type": G5, "plan": "savings_plan_1y"}
    answer = staff.get("/api/v1/fleet/instance-saving", asked | {"compared_with": P4D}).json()
    assert (answer["percent"], answer["rate"]["hour_nano"]) == ("79.88", 2_012_000_000)
    answer = staff.get("/api/v1/fleet/blended-price", asked | {"itl_p50_ms": "20", "concurrency": 64}).json()
    used = answer["instance_price"]
    assert (used["hour_nano"], used["plan"], used["effective_from"]) == (
        2_012_000_000,
        "savings_plan_1y",
        str(DAY),
    )
    assert answer["discount"] == "0.7162"
    assert "our contract" in used["source"]
