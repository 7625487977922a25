"""What staff sees of one tenant."""

from __future__ import annotations

import uuid
from typing import Any

from controlplane.adapters.models import AdapterQuota
from controlplane.adapters.quotas import quota_get, quota_use
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import TaxKind
from controlplane.billing.taxes.selectors import treatment_list
from controlplane.billing.unpriced import unbilled_unpriced
from controlplane.console.amounts import nano_shown
from controlplane.console.limits_form import limits_shown
from controlplane.console.seen import seen_tag
from controlplane.console.views.parties import parties_context
from controlplane.limits.selectors import tenant_limits_get
from controlplane.operations.models import TenantDeletion
from controlplane.tenants.models import Tenant


def tenant_context(found: Tenant) -> dict[str, Any]:
    """The page's context: books, limits, quota, taxes, deletion."""
    how, limits = balance(tenant=found.pk), tenant_limits_get(tenant=found)
    limits_now, quota_now = limits_shown(limits), quota_shown(quota_get(tenant=found))
    return {
        "found": found,
        "deletion": TenantDeletion.objects.filter(pk=found.pk).first(),
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
    """As the form has it: empty for no limit, bytes in GB."""
    shown = {
        name: "" if getattr(row, name) is None else str(getattr(row, name))
        for name in ("adapters", "versions")
    }
    # A gigabyte has as many bytes as a unit has nano-units.
    return {**shown, "size_gb": "" if row.size_bytes is None else nano_shown(row.size_bytes)}
