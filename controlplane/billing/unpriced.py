"""Whether a tenant used what no price is for: an amount that does not have it in it must say so."""

from __future__ import annotations

import datetime as dt

from controlplane.billing.hosting_costs import hosting_costs
from controlplane.billing.models import Invoice
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import HOSTING
from controlplane.billing.usage_report import usage_report
from controlplane.tenants.models import Tenant


def usage_unpriced(*, tenant: Tenant, start: dt.date, end: dt.date, prices: PriceList) -> bool:
    """Some tokens, or billed time, of the UTC days `start` to `end`, both included, have no price.

    Raises InvalidInputError for days that are too many for a report of usage.
    """
    report = usage_report(tenant=tenant, start=start, end=end, group_by=(), prices=prices)
    return report.total.unpriced or hosting_unpriced(tenant=tenant.pk, start=start, end=end, prices=prices)


def hosting_unpriced(*, tenant: str, start: dt.date, end: dt.date, prices: PriceList) -> bool:
    """Some time of hosting that is billed on its day has no price."""
    # What a base model has a price of, all of its adapters have: thousands of them are seldom looked at.
    if all(
        prices.unit(item, tenant=tenant, day=day, base_model=base) is not None
        or not prices.bills(item, tenant=tenant, day=day)
        for day, item, base in HOSTING.bases(tenant=tenant, start=start, end=end)
    ):
        return False
    costs = hosting_costs(tenant=tenant, start=start, end=end, prices=prices)
    return any(cost.billed and cost.nano is None for cost in costs)


def unbilled_unpriced(*, tenant: Tenant, today: dt.date, prices: PriceList) -> bool:
    """Some usage that no finalized invoice has, and no balance, for want of a price: of months that are over
    as their drafts say, of the one under way as it is now."""
    month = today.replace(day=1)
    drafts = Invoice.objects.filter(
        tenant=tenant.pk, status=Invoice.Status.DRAFT, month__lt=month, unpriced=True
    )
    return drafts.exists() or usage_unpriced(tenant=tenant, start=month, end=today, prices=prices)
