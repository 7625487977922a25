"""Items that need the tenant's attention: refused versions, expiring keys, low budget or credit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.adapters.selectors import version_list_refused
from controlplane.billing.currency import money_rounded
from controlplane.billing.invoices.selectors import invoice_list
from controlplane.billing.ledger.selectors import balance, invoices_open
from controlplane.console.billing.spend import NEAR_PERCENT, BudgetState
from controlplane.tenants.access import Access
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_list_expiring

SOON: Final = dt.timedelta(days=7)
"""A key that expires within this time is listed; so is a version refused within this time."""
_SHOWN: Final = 3
_INVOICES: Final = 24


@dataclass(frozen=True, slots=True)
class ToDo:
    """One item: its text, and the page on which to act."""

    tone: str
    text: str
    url: str
    name: str


def to_do(
    *, access: Access, limits: ScopeLimits, budget: BudgetState | None, currency: str, a_day_nano: int
) -> list[ToDo]:
    """Return the items that the member may see, the most urgent kind first.

    Args:
        a_day_nano: the tenant's recent spend a day.
    """
    found: list[ToDo] = []
    if access.may(Permission.BILLING_READ):
        found += _money(access.tenant, limits, budget, currency, a_day_nano)
    if access.may(Permission.ADAPTERS_READ):
        found += _refused(access.tenant)
    if access.may(Permission.KEYS_READ):
        found += _expiring(access.tenant)
    return found


def _money(
    tenant: Tenant, limits: ScopeLimits, budget: BudgetState | None, currency: str, a_day_nano: int
) -> Iterator[ToDo]:
    billing = reverse("console:billing", args=(tenant.pk,))
    if budget and budget.percent >= NEAR_PERCENT:
        text = _("%(percent)d %% of the budget for %(period)s is spent. At 100 %%, requests are rejected.")
        yield ToDo(
            budget.tone, text % {"percent": budget.percent, "period": budget.period}, billing, "budget"
        )
    if limits.prepaid_stop:
        left = balance(tenant=tenant.pk, currency=currency).available
        if left <= 0:
            yield ToDo(
                "danger", _("The prepaid balance is used up: requests are rejected."), billing, "prepaid"
            )
        elif left < a_day_nano * SOON.days:
            text = _("%(left)s of prepaid balance remains. At the current rate it lasts %(days)d days.")
            parts = {"left": money_rounded(left, currency), "days": left // a_day_nano + 1}
            yield ToDo("warn", text % parts, billing, "prepaid")
    invoices = [row for row in invoice_list(tenant=tenant.pk)[:_INVOICES] if row.is_final]
    if unpaid := invoices_open(tenant=tenant.pk, invoices=invoices):
        text = ngettext(
            "%(count)d invoice is due: %(sum)s.", "%(count)d invoices are due: %(sum)s.", len(unpaid)
        )
        parts = {"count": len(unpaid), "sum": money_rounded(sum(unpaid.values()), currency)}
        yield ToDo("warn", text % parts, billing, "invoices")


def _refused(tenant: Tenant) -> Iterator[ToDo]:
    for name, number in version_list_refused(tenant=tenant, since=timezone.now() - SOON)[:_SHOWN]:
        text = _("%(name)s v%(number)d was refused: view the failed check.")
        url = reverse("console:version", args=(tenant.pk, name, number))
        yield ToDo("danger", text % {"name": name, "number": number}, url, "refused")


def _expiring(tenant: Tenant) -> Iterator[ToDo]:
    for key in api_key_list_expiring(tenant=tenant, within=SOON)[:_SHOWN]:
        assert key.expires_at is not None
        text = _("Key “{name}” expires on {day}: move its applications to another key.")
        name = format_html("<bdi>{}</bdi>", key.name)
        sentence = format_html(text, name=name, day=f"{key.expires_at:%d %b %Y}")
        yield ToDo("warn", sentence, reverse("console:key", args=(tenant.pk, key.pk)), "key")
