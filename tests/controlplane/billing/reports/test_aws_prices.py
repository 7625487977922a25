"""Prices read from AWS, which is the local SageMaker here, by service, REST and page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.billing.reports.aws_prices import Payment, _hosted_type, _hourly, instance_prices_read
from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.billing.reports.instance_rates import instance_saving, rate_in_force
from controlplane.billing.reports.models import InstancePrice, Plan
from controlplane.deployments.models import Target
from controlplane.deployments.targets.services import target_create
from controlplane.errors import InvalidInputError, UnavailableError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.services import user_create
from sagemaker_local.prices import HOURLY
from tests.sagemaker_local.stand import BUCKET, KEY, REGION, ROLE, Stand, run_stand

pytestmark = pytest.mark.django_db
G5, P4D = "ml.g5.12xlarge", "ml.p4d.24xlarge"


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


@pytest.fixture
def target(stand: Stand, monkeypatch: pytest.MonkeyPatch, db: None) -> Target:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY["secret_key"])
    store = f"s3://{BUCKET}/graft"
    return target_create(
        name="sm", kind="sagemaker", region=REGION, endpoint_url=stand.url, role_arn=ROLE, store=store
    )


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def test_every_page_of_both_apis_is_read_for_endpoints_and_one_year(target: Target) -> None:
    InstancePrice.objects.all().delete()
    added = instance_prices_read(target=target).added
    assert [(row.instance_type, row.plan) for row in added] == [
        (name, plan) for name in sorted(HOURLY) for plan in (Plan.ON_DEMAND, Plan.SAVINGS_PLAN_1Y)
    ]
    today = added[0].effective_from
    on_demand = rate_in_force(instance_type=G5, region=REGION, plan=Plan.ON_DEMAND)
    assert (on_demand.hour, on_demand.currency) == (7.09, "USD")
    assert on_demand.source == f"AWS Price List API, read on {today}"
    planned = rate_in_force(instance_type=G5, region=REGION, plan=Plan.SAVINGS_PLAN_1Y)
    assert planned.hour == pytest.approx(7.09 * 0.8)
    assert planned.source == f"AWS Savings Plans API, 1 year, No Upfront, read on {today}"
    saving = instance_saving(
        instance_type=G5, compared_with=P4D, region=REGION, plan=Plan.SAVINGS_PLAN_1Y, day=today
    )
    assert saving.percent == "81.19"
    assert AuditRecord.objects.filter(action="instance_price.set").count() == len(added)


def test_only_changes_are_added_and_todays_price_is_kept(target: Target) -> None:
    InstancePrice.objects.all().delete()
    today = timezone.now().date()
    instance_price_set(
        instance_type=G5, region=REGION, effective_from=today, source="our contract", hour_nano=5_000_000_000
    )
    read = instance_prices_read(target=target, payment=Payment.ALL_UPFRONT)
    assert (len(read.added), read.kept) == (2 * len(HOURLY) - 1, 1)
    assert rate_in_force(instance_type=G5, region=REGION, plan=Plan.ON_DEMAND).hour == 5.0
    assert "All Upfront" in rate_in_force(instance_type=G5, region=REGION, plan=Plan.SAVINGS_PLAN_1Y).source
    again = instance_prices_read(target=target, payment=Payment.NO_UPFRONT)
    assert (again.added, again.kept) == ([], 1 + len(HOURLY)), "the table holds one rate of a plan"


@pytest.mark.parametrize(
    ("usage_type", "name"),
    [(f"USE1-Host:{G5}", G5), (f"Host:{G5}", G5), (f"USE1-AsyncHost:{G5}", ""), (f"USE1-Train:{G5}", "")],
)
def test_usage_of_endpoints_alone_counts(usage_type: str, name: str) -> None:
    assert _hosted_type(usage_type) == name


@pytest.mark.parametrize(
    ("dimensions", "price"),
    [
        ([{"unit": "Hrs", "pricePerUnit": {"USD": "7.09"}}], ("USD", "7.09")),
        ([{"unit": "Quantity", "pricePerUnit": {"USD": "7.09"}}], None),
        (
            [{"unit": "Hrs", "pricePerUnit": {"USD": "1"}}, {"unit": "Hrs", "pricePerUnit": {"USD": "2"}}],
            None,
        ),
        ([{"unit": "Hrs", "pricePerUnit": {"USD": "7.09", "CNY": "50"}}], None),
        ([], None),
    ],
)
def test_products_without_one_hourly_price_are_passed_over(
    dimensions: list[dict[str, object]], price: tuple[str, str] | None
) -> None:
    term = {"priceDimensions": {str(number): item for number, item in enumerate(dimensions)}}
    assert _hourly({"terms": {"OnDemand": {"A.B": term}}}) == price
    assert _hourly({"terms": {"Reserved": {"A.B": term}}}) is None


def test_what_cannot_be_read_is_named(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    local = target_create(name="here", kind="local")
    with pytest.raises(InvalidInputError, match="must be of kind sagemaker"):
        instance_prices_read(target=local)
    with pytest.raises(InvalidInputError, match="payment must be one of No Upfront"):
        instance_prices_read(target=target, payment="later")
    with pytest.raises(InvalidInputError, match="no prices of SageMaker endpoints in eu-west-3"):
        instance_prices_read(target=target, region="eu-west-3")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" * 8)
    with pytest.raises(InvalidInputError, match="get_products"):
        instance_prices_read(target=target)
    Target.objects.filter(pk=target.pk).update(endpoint_url="http://127.0.0.1:9")
    target.refresh_from_db()
    with pytest.raises(UnavailableError, match="get_products"):
        instance_prices_read(target=target)


def test_staff_read_them_by_rest_and_on_the_page(target: Target, staff: Client) -> None:
    InstancePrice.objects.all().delete()
    url = "/api/v1/instance-prices/aws"
    assert Client().post(url).status_code in (401, 403)
    answer = staff.post(url, {"target": "sm", "region": "nowhere"}, content_type="application/json")
    assert answer.status_code == 400
    answer = staff.post(url, {"target": "gone"}, content_type="application/json")
    assert answer.status_code == 404
    answer = staff.post(url, {"target": "sm", "payment": "later"}, content_type="application/json")
    assert answer.status_code == 400
    once = {"Idempotency-Key": "prices"}
    for _ in range(2):
        body = {"target": "sm", "region": ""}
        answer = staff.post(url, body, content_type="application/json", headers=once)
        assert len(answer.json()) == 2 * len(HOURLY)

    page = "/staff/instance-prices/"
    assert "Read prices" in staff.get(page).content.decode()
    again = staff.post(f"{page}aws", {"target": "sm", "region": "", "payment": "No Upfront"}, follow=True)
    assert "All prices are up to date." in again.content.decode()
    refused = staff.post(f"{page}aws", {"target": "sm", "region": "", "payment": "later"})
    assert refused.status_code == 422
    other = staff.post(f"{page}aws", {"target": "sm", "region": "", "payment": "All Upfront"}, follow=True)
    assert f"{len(HOURLY)} prices of today differ and were kept." in other.content.decode()
    assert "is not a valid choice" in refused.content.decode()
