"""The lists on a tenant's staff page: the first rows of each, with the count of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from controlplane.adapters.selectors import adapter_list
from controlplane.billing.invoices.selectors import invoice_list
from controlplane.billing.ledger.selectors import invoices_open
from controlplane.tenants.members.selectors import invitation_list, member_list
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import api_key_list_current

SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Part:
    """The first rows of a list; `count` counts all rows."""

    rows: Sequence[Any]
    count: int


def tenant_lists(found: Tenant) -> dict[str, Part]:
    """Return the tenant's keys, adapters, members, invitations and invoices. Bounded queries."""
    lists = {
        "keys": api_key_list_current(tenant=found),
        "adapters": adapter_list(tenant=found),
        "members": member_list(tenant=found),
        "invitations": invitation_list(tenant=found),
    }
    parts = {name: Part(list(rows[:SHOWN]), rows.count()) for name, rows in lists.items()}
    invoices = list(invoice_list(tenant=found.pk)[:SHOWN])
    unpaid = invoices_open(tenant=found.pk, invoices=invoices)
    rows = [(invoice, unpaid.get(invoice.pk, 0)) for invoice in invoices]
    return {**parts, "invoices": Part(rows, invoice_list(tenant=found.pk).count())}
