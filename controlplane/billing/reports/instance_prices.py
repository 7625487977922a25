"""Instance prices, which operators add."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from controlplane.billing.reports.models import InstancePrice, Plan
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.lengths import checked_text

_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]")
NANO: Final = Decimal(10) ** -9


def instance_price_list() -> QuerySet[InstancePrice]:
    """Every price, in the order in which they were added."""
    return InstancePrice.objects.order_by("id")


@transaction.atomic
def instance_price_set(
    *,
    instance_type: str,
    region: str,
    effective_from: dt.date,
    source: str,
    hour_nano: int | None = None,
    currency: str = "USD",
    plan: str = Plan.ON_DEMAND,
    reference_type: str = "",
    percent_below: Decimal | None = None,
) -> InstancePrice:
    """Adds a price, in force from `effective_from` until a later one of the same plan.

    Args:
        hour_nano: nano-units per hour; None if only the difference to another type is known.
        reference_type: that type, with `percent_below`, the percent by which the price is below its price.

    Raises:
        InvalidInputError: a malformed name, a negative price, no source, or both a price and a difference.
        ConflictError: there is a price from that day: prices are added, never changed.
    """
    if _TYPE.fullmatch(instance_type) is None:
        raise InvalidInputError("instance_type must look like ml.g5.2xlarge", field="instance_type")
    if _REGION.fullmatch(region) is None:
        raise InvalidInputError("region must look like eu-central-1", field="region")
    if plan not in Plan.values:
        raise InvalidInputError(f"plan must be one of {', '.join(Plan.values)}", field="plan")
    amount = _amount(instance_type, hour_nano, reference_type, percent_below)
    if re.fullmatch(r"[A-Z]{3}", currency) is None:
        raise InvalidInputError("currency must be an ISO 4217 code such as USD", field="currency")
    if not source.strip():
        raise InvalidInputError("source is required: name where the price is published", field="source")
    key = {"instance_type": instance_type, "region": region, "plan": plan, "effective_from": effective_from}
    values = {"currency": currency, "source": checked_text(source, field="source", most=300)}
    try:
        with transaction.atomic():
            price = InstancePrice.objects.create(**key, **values, **amount)
    except IntegrityError:
        there = f"{instance_type} in {region} already has a price of plan {plan} from {effective_from}"
        raise ConflictError(there) from None
    audit_record(tenant="", action="instance_price.set", target=price, after=snapshot(price))
    return price


def _amount(
    instance_type: str, hour_nano: int | None, reference_type: str, percent_below: Decimal | None
) -> dict[str, Any]:
    """Return the checked price or difference. Raises InvalidInputError."""
    if hour_nano is not None:
        if not 0 <= hour_nano < 1 << 62:
            raise InvalidInputError(
                "hour_nano must be an integer of nano-units, 0 or more", field="hour_nano"
            )
        if reference_type or percent_below is not None:
            raise InvalidInputError("hour_nano and reference_type exclude each other", field="reference_type")
        return {"hour_nano": hour_nano}
    if not reference_type or percent_below is None:
        raise InvalidInputError(
            "hour_nano is required, or reference_type with percent_below", field="hour_nano"
        )
    if _TYPE.fullmatch(reference_type) is None or reference_type == instance_type:
        raise InvalidInputError("reference_type must be another instance type", field="reference_type")
    if not 0 <= percent_below < 100:
        raise InvalidInputError("percent_below must be at least 0 and below 100", field="percent_below")
    return {"reference_type": reference_type, "percent_below": percent_below}
