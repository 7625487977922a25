"""Balances that are kept up to an entry, so that a long journal is not added up anew every few seconds."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Final

from django.db.models import Sum

from controlplane.billing.models import Account, JournalEntry, LedgerCheckpoint, LedgerHead

logger = logging.getLogger(__name__)

BEHIND: Final = 1000
"""Entries that are added up each time; of more, a checkpoint is made."""


def sums(*, tenant: str, after: int = 0, through: int | None = None) -> dict[str, int]:
    """Debits less credits of the entries after one number, and through another, by account."""
    entries = JournalEntry.objects.filter(tenant=tenant, number__gt=after).order_by()
    if through is not None:
        entries = entries.filter(number__lte=through)
    found: dict[str, int] = defaultdict(int)
    for row in entries.values("debit", "credit").annotate(total=Sum("amount_nano")):
        found[row["debit"]] += row["total"]
        found[row["credit"]] -= row["total"]
    return dict(found)


def balances(*, tenant: str) -> dict[Account, int]:
    """Debits less credits of each account that has entries, in nano-units. Their sum is 0."""
    kept = LedgerCheckpoint.objects.filter(tenant=tenant).first()
    found: dict[str, int] = defaultdict(int, kept.sums if kept else {})
    for account, amount in sums(tenant=tenant, after=kept.through if kept else 0).items():
        found[account] += amount
    return {Account(account): amount for account, amount in found.items()}


def checkpoints_advance() -> int:
    """Brings checkpoints forward where many entries have come since; how many."""
    kept = dict(LedgerCheckpoint.objects.values_list("tenant", "through"))
    heads = LedgerHead.objects.order_by("tenant").values_list("tenant", "entries")
    behind = [(tenant, entries) for tenant, entries in heads if entries - kept.get(tenant, 0) >= BEHIND]
    for tenant, through in behind:
        _write(tenant, through, sums(tenant=tenant, through=through))
    return len(behind)


def checkpoints_check() -> int:
    """Adds every journal with a checkpoint up anew; what differs is logged and mended. How many did."""
    found = 0
    for kept in LedgerCheckpoint.objects.order_by("tenant"):
        right = sums(tenant=kept.tenant, through=kept.through)
        if kept.sums != right:
            found += 1
            logger.error(
                "balances of %s through entry %d: %s kept, %s right",
                kept.tenant,
                kept.through,
                kept.sums,
                right,
            )
            _write(kept.tenant, kept.through, right)
    return found


def _write(tenant: str, through: int, right: dict[str, int]) -> None:
    # Numbers are given under a lock until the commit: whoever sees one sees all before it.
    LedgerCheckpoint.objects.update_or_create(tenant=tenant, defaults={"through": through, "sums": right})
