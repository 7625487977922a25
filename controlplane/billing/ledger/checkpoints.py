"""Stored balances up to a journal entry, so that a long journal is not summed every few seconds."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Final

from django.db.models import Sum

from controlplane.billing.models import Account, JournalEntry, LedgerCheckpoint, LedgerHead

logger = logging.getLogger(__name__)

BEHIND: Final = 1000
"""A checkpoint is advanced when this many entries have followed it."""


def sums(*, tenant: str, after: int = 0, through: int | None = None) -> dict[str, int]:
    """Return debits less credits by account, of entries after one number and through another."""
    entries = JournalEntry.objects.filter(tenant=tenant, number__gt=after).order_by()
    if through is not None:
        entries = entries.filter(number__lte=through)
    found: dict[str, int] = defaultdict(int)
    for row in entries.values("debit", "credit").annotate(total=Sum("amount_nano")):
        found[row["debit"]] += row["total"]
        found[row["credit"]] -= row["total"]
    return dict(found)


def balances(*, tenant: str) -> dict[Account, int]:
    """Return debits less credits of each account that has entries, in nano-units. They sum to 0."""
    checkpoint = LedgerCheckpoint.objects.filter(tenant=tenant).first()
    found: dict[str, int] = defaultdict(int, checkpoint.sums if checkpoint else {})
    for account, amount in sums(tenant=tenant, after=checkpoint.through if checkpoint else 0).items():
        found[account] += amount
    return {Account(account): amount for account, amount in found.items()}


def checkpoints_advance() -> int:
    """Advances checkpoints that many entries have followed; returns how many."""
    through_by_tenant = dict(LedgerCheckpoint.objects.values_list("tenant", "through"))
    heads = LedgerHead.objects.order_by("tenant").values_list("tenant", "entries")
    behind = [
        (tenant, entries) for tenant, entries in heads if entries - through_by_tenant.get(tenant, 0) >= BEHIND
    ]
    for tenant, through in behind:
        _write(tenant, through, sums(tenant=tenant, through=through))
    return len(behind)


def checkpoints_check() -> int:
    """Recomputes every checkpoint, logs and corrects differences; returns how many differed."""
    found = 0
    for checkpoint in LedgerCheckpoint.objects.order_by("tenant"):
        right = sums(tenant=checkpoint.tenant, through=checkpoint.through)
        if checkpoint.sums != right:
            found += 1
            logger.error(
                "balances of %s through entry %d: %s kept, %s right",
                checkpoint.tenant,
                checkpoint.through,
                checkpoint.sums,
                right,
            )
            _write(checkpoint.tenant, checkpoint.through, right)
    return found


def _write(tenant: str, through: int, right: dict[str, int]) -> None:
    # Entry numbers are assigned under a lock held until commit, so all lower numbers are visible too.
    LedgerCheckpoint.objects.update_or_create(tenant=tenant, defaults={"through": through, "sums": right})
