"""Reads instance prices from AWS, with the credentials of a SageMaker target.

On-demand prices come from the Price List API, rates of 1-year plans from the Savings Plans API: both for
one region and as of today.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from django.db.models import TextChoices
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from controlplane.billing.reports.instance_prices import NANO, instance_price_set
from controlplane.billing.reports.instance_rates import InstancePrices
from controlplane.billing.reports.models import InstancePrice, Plan
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.sizing.instances import INSTANCES
from controlplane.errors import ConflictError, InvalidInputError, UnavailableError

YEAR_SECONDS: Final = 365 * 24 * 3600
_SERVICE: Final = "AmazonSageMaker"
_HOSTING: Final = re.compile(r"(?:[A-Z0-9]+-)?Host:(.+)")
"""A usage type such as `USE1-Host:ml.g5.xlarge`: an instance of an endpoint, not of a notebook or a job."""


class Payment(TextChoices):
    """When a Savings Plan is paid for; AWS's own values."""

    NO_UPFRONT = "No Upfront", _("No upfront")
    PARTIAL_UPFRONT = "Partial Upfront", _("Partial upfront")
    ALL_UPFRONT = "All Upfront", _("All upfront")


@dataclass(frozen=True, slots=True)
class Quote:
    """A price that AWS answered, in nano-units per hour."""

    instance_type: str
    plan: Plan
    currency: str
    hour_nano: int
    source: str


@dataclass(frozen=True, slots=True)
class ReadPrices:
    """What a reading changed: prices that it added, and how many others of today it left in place."""

    added: list[InstancePrice]
    kept: int


def instance_prices_read(
    *,
    target: Target,
    region: str = "",
    payment: str = Payment.NO_UPFRONT,
    connect: Callable[[Target], ServicesAccount] = ServicesAccount.from_target,
) -> ReadPrices:
    """Add today's prices of the instance types that deployments can use, where they differ from the table's.

    Prices that were already added for today are kept, also those of another payment: the table holds one rate
    of a plan.

    Args:
        region: by default the target's.
        payment: of the Savings Plan, one of `Payment`.

    Raises:
        InvalidInputError: a target that is not SageMaker's, no region, or AWS refused or has no prices
            there, with the reason.
        UnavailableError: AWS did not answer.
    """
    region = region or target.region
    if target.kind != Target.Kind.SAGEMAKER:
        raise InvalidInputError(
            "target must be of kind sagemaker: its credentials read the prices", field="target"
        )
    if not region:
        raise InvalidInputError("region is required: the target has none", field="region")
    if payment not in Payment.values:
        raise InvalidInputError(f"payment must be one of {', '.join(Payment.values)}", field="payment")
    quotes = _quotes(target, region, payment, connect)
    if not quotes:
        raise InvalidInputError(f"AWS has no prices of SageMaker endpoints in {region[:40]}", field="region")
    return _add(quotes, region)


def _quotes(
    target: Target, region: str, payment: str, connect: Callable[[Target], ServicesAccount]
) -> list[Quote]:
    try:
        account = connect(target)
        try:
            return [*_on_demand(account, region), *_savings_plan(account, region, payment)]
        finally:
            account.close()
    except ProvisioningError as error:
        if error.transient:
            raise UnavailableError(str(error)) from error
        raise InvalidInputError(str(error), field="target") from error


def _add(quotes: Iterable[Quote], region: str) -> ReadPrices:
    today, prices = timezone.now().date(), InstancePrices()
    added, kept = list[InstancePrice](), 0
    for quote in sorted(quotes, key=lambda quote: (quote.instance_type, quote.plan)):
        known = prices.on(today, instance_type=quote.instance_type, region=region, plan=quote.plan)
        if known and (known.hour_nano, known.currency) == (quote.hour_nano, quote.currency):
            continue
        try:
            price = instance_price_set(
                instance_type=quote.instance_type,
                region=region,
                effective_from=today,
                source=f"{quote.source}, read on {today}",
                hour_nano=quote.hour_nano,
                currency=quote.currency,
                plan=quote.plan,
            )
        except ConflictError:
            kept += 1  # a price of today was added before, by hand or by an earlier reading
        else:
            added.append(price)
    return ReadPrices(added, kept)


def _on_demand(account: ServicesAccount, region: str) -> Iterator[Quote]:
    filters = {"regionCode": region, "component": "Hosting"}
    pages = account.every_page(
        "pricing",
        "get_products",
        region,
        next_field="NextToken",
        ServiceCode=_SERVICE,
        Filters=[{"Type": "TERM_MATCH", "Field": name, "Value": text} for name, text in filters.items()],
    )
    for item in (json.loads(text) for page in pages for text in page["PriceList"]):
        name = _hosted_type(item["product"]["attributes"].get("usagetype", ""))
        if name and (price := _hourly(item)):
            currency, amount = price
            yield Quote(name, Plan.ON_DEMAND, currency, _nano(amount), "AWS Price List API")


def _hourly(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return currency and amount of a product's one price by the hour; None for terms of any other form."""
    terms = item.get("terms", {}).get("OnDemand", {})
    dimensions = [dimension for term in terms.values() for dimension in term["priceDimensions"].values()]
    if len(dimensions) != 1 or dimensions[0]["unit"] != "Hrs" or len(dimensions[0]["pricePerUnit"]) != 1:
        return None
    ((currency, amount),) = dimensions[0]["pricePerUnit"].items()
    return currency, amount


def _savings_plan(account: ServicesAccount, region: str, payment: str) -> Iterator[Quote]:
    pages = account.every_page(
        "savingsplans",
        "describe_savings_plans_offering_rates",
        region,
        next_field="nextToken",
        savingsPlanTypes=["SageMaker"],
        savingsPlanPaymentOptions=[payment],
        serviceCodes=[_SERVICE],
        maxResults=1000,
        filters=[{"name": "region", "values": [region]}],
    )
    for rate in (rate for page in pages for rate in page["searchResults"]):
        offering, name = rate["savingsPlanOffering"], _hosted_type(rate["usageType"])
        if name and rate["unit"] == "Hrs" and offering["durationSeconds"] == YEAR_SECONDS:
            source = f"AWS Savings Plans API, 1 year, {payment}"
            yield Quote(name, Plan.SAVINGS_PLAN_1Y, offering["currency"], _nano(rate["rate"]), source)


def _hosted_type(usage_type: str) -> str:
    """Return the instance type of an endpoint's usage type; "" for any other usage or type."""
    match = _HOSTING.fullmatch(usage_type)
    return match[1] if match and match[1] in INSTANCES else ""


def _nano(amount: str) -> int:
    return round(Decimal(amount) / NANO)
