"""Figures of tenants for staff: rows of the list, and the page of one tenant."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest

from controlplane.adapters.models import AdapterQuota
from controlplane.adapters.quotas import quota_get, quota_use
from controlplane.adapters.selectors import adapter_counts
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import TaxKind
from controlplane.billing.price_list import PriceList
from controlplane.billing.selectors import booked_nano
from controlplane.billing.taxes.selectors import treatment_list
from controlplane.billing.unpriced import unbilled_unpriced
from controlplane.console.amounts import nano_shown
from controlplane.console.bars import HEIGHT, WIDTH
from controlplane.console.billing.spend import budget_state
from controlplane.console.billing.views.parties import parties_context
from controlplane.console.day_range import THIS_MONTH, UP_TO_A_MONTH, preset_asked, presets_shown
from controlplane.console.home.figures import home_figures
from controlplane.console.keys.limits_form import limits_shown
from controlplane.console.seen import seen_tag
from controlplane.console.staff.tenant_lists import tenant_lists
from controlplane.metering.selectors import usage_by_tenant
from controlplane.operations.selectors import deletion_find
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import api_key_counts

USE_DAYS: Final = 30
"""Days of usage in the list."""


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant in the list.

    Attributes:
        use: its sums of the last days (`asked`, `tokens`, `failed`); None without usage.
        spent_nano: booked for this month's invoice.
        keys: live keys; adapters: adapters that are not deleted.
    """

    tenant: Tenant
    use: Mapping[str, Any] | None
    spent_nano: int
    keys: int
    adapters: int
    currency: str


def tenant_rows(found: Sequence[Tenant]) -> list[TenantRow]:
    """Return rows for a page of tenants, with one query for each column."""
    names, today = [tenant.pk for tenant in found], dt.datetime.now(dt.UTC).date()
    use = usage_by_tenant(tenants=names, after=today - dt.timedelta(days=USE_DAYS))
    keys, adapters = api_key_counts(tenants=names), adapter_counts(tenants=names)
    spent = booked_nano(tenants=names, month=today.replace(day=1))
    currency = PriceList.load().currency()
    return [
        TenantRow(
            tenant,
            use.get(tenant.pk),
            spent.get(tenant.pk, 0),
            keys.get(tenant.pk, 0),
            adapters.get(tenant.pk, 0),
            currency,
        )
        for tenant in found
    ]


def tenant_context(request: HttpRequest, found: Tenant) -> dict[str, Any]:
    """Return the page's context: usage in the range, lists, ledger, limits, quota, taxes, deletion."""
    how, limits, prices = balance(tenant=found.pk), tenant_limits_get(tenant=found), PriceList.load()
    start, end = preset_asked(request, default=THIS_MONTH, choices=UP_TO_A_MONTH).dates
    figures, report = home_figures(tenant=found, start=start, end=end, prices=prices)
    limits_now, quota_now = limits_shown(limits), quota_shown(quota_get(tenant=found))
    return {
        "found": found,
        "presets": presets_shown(request, default=THIS_MONTH, choices=UP_TO_A_MONTH),
        "figures": figures,
        "total": report.total,
        "width": WIDTH,
        "height": HEIGHT,
        "lists": tenant_lists(found),
        "budget_state": budget_state(limits=limits, prices=prices),
        "deletion": deletion_find(slug=found.pk),
        "limits": limits,
        "balance": how,
        "unpriced": unbilled_unpriced(tenant=found.pk),
        "currency": how.currency,
        "once": uuid.uuid4().hex,
        "treatments": treatment_list(tenant=found.pk),
        "tax_kinds": TaxKind.choices,
        **parties_context(found.pk),
        "limits_form": {"values": limits_now, "seen": seen_tag(limits_now)},
        "quota_form": {"values": quota_now, "seen": seen_tag(quota_now), "use": quota_use(tenant=found)},
    }


def quota_shown(row: AdapterQuota) -> dict[str, str]:
    """Return a quota as form values: empty for no limit, bytes in GB."""
    shown = {
        name: "" if getattr(row, name) is None else str(getattr(row, name))
        for name in ("adapters", "versions")
    }
    # A gigabyte has 1e9 bytes, as a currency unit has 1e9 nano-units.
    return {**shown, "size_gb": "" if row.size_bytes is None else nano_shown(row.size_bytes)}
