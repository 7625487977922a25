"""A seller and billing details, which final invoices and credit notes need."""

from __future__ import annotations

import datetime as dt

from controlplane.billing.models import BillingParty


def parties_state(tenant: str = "acme") -> None:
    """State the seller and a tenant's billing details from 2000 on, without an audit record."""
    for party, name in (("", "Graft SE"), (tenant, tenant)):
        BillingParty.objects.get_or_create(
            tenant=party, starts=dt.date(2000, 1, 1), defaults={"legal_name": name, "address": "1 Main St"}
        )
