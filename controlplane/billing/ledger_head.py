"""The lock that writers of a tenant's ledger hold."""

from __future__ import annotations

from django.db import connection

from controlplane.billing.models import LedgerHead


def head_lock(*, tenant: str) -> LedgerHead:
    """Return the tenant's counters, locked until this transaction ends.

    Raises:
        RuntimeError: there is no transaction.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("ledger writes need a transaction: use transaction.atomic")
    LedgerHead.objects.get_or_create(tenant=tenant)
    return LedgerHead.objects.select_for_update().get(tenant=tenant)
