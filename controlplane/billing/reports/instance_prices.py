"""Instance prices: read by day, added by operators."""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_right
from collections import defaultdict
from decimal import Decimal
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from controlplane.billing.reports.models import InstancePrice
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
    hour_nano: int,
    source: str,
    currency: str = "USD",
) -> InstancePrice:
    """Adds a price, in force from `effective_from` until a later one.

    Raises:
        InvalidInputError: a malformed name, a negative price, or no source.
        ConflictError: there is a price from that day: prices are added, never changed.
    """
    if _TYPE.fullmatch(instance_type) is None:
        raise InvalidInputError("instance_type must look like ml.g5.2xlarge", field="instance_type")
    if _REGION.fullmatch(region) is None:
        raise InvalidInputError("region must look like eu-central-1", field="region")
    if not 0 <= hour_nano < 1 << 62:
        raise InvalidInputError("hour_nano must be an integer of nano-units, 0 or more", field="hour_nano")
    if re.fullmatch(r"[A-Z]{3}", currency) is None:
        raise InvalidInputError("currency must be an ISO 4217 code such as USD", field="currency")
    if not source.strip():
        raise InvalidInputError("source is required: name where the price is published", field="source")
    key = {"instance_type": instance_type, "region": region, "effective_from": effective_from}
    values = {
        "hour_nano": hour_nano,
        "currency": currency,
        "source": checked_text(source, field="source", most=300),
    }
    try:
        with transaction.atomic():
            price = InstancePrice.objects.create(**key, **values)
    except IntegrityError:
        there = f"{instance_type} in {region} already has a price from {effective_from}"
        raise ConflictError(there) from None
    audit_record(tenant="", action="instance_price.set", target=price, after=snapshot(price))
    return price


class InstancePrices:
    """All instance prices in memory."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[InstancePrice]] = defaultdict(list)
        for row in InstancePrice.objects.order_by("effective_from"):
            self._rows[row.instance_type, row.region].append(row)

    def on(self, day: dt.date, *, instance_type: str, region: str) -> InstancePrice | None:
        """Return the price in force on a day; None before the first."""
        rows = self._rows.get((instance_type, region), [])
        reached = bisect_right(rows, day, key=lambda row: row.effective_from)
        return rows[reached - 1] if reached else None
