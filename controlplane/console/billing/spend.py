"""How much of a tenant's budget and prepaid credit is spent."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from django.utils import timezone

from contracts.limits import BudgetPeriod, budget_period
from controlplane.billing.price_list import PriceList
from controlplane.billing.selectors import spent_nano
from controlplane.billing.unpriced import usage_unpriced
from controlplane.tenants.limits.models import ScopeLimits

NEAR_PERCENT: Final = 80
"""From this percentage on a budget is nearly spent, and its owners have been notified."""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget in the current period; amounts are nano-units. `unpriced`: some usage has no price and is not
    in the spent amount."""

    period: str
    budget_nano: int
    spent_nano: int
    ends: dt.datetime
    unpriced: bool

    @property
    def percent(self) -> int:
        """Spent percent of the budget, rounded down; 100 for a budget of 0."""
        return self.spent_nano * 100 // self.budget_nano if self.budget_nano else 100

    @property
    def left_nano(self) -> int:
        return max(0, self.budget_nano - self.spent_nano)

    @property
    def shown(self) -> int:
        """`percent` for a bar, at most 100."""
        return min(100, self.percent)

    @property
    def tone(self) -> str:
        if self.percent >= 100:
            return "danger"
        return "warn" if self.percent >= NEAR_PERCENT else "ok"


def budget_state(*, limits: ScopeLimits, prices: PriceList) -> BudgetState | None:
    """Return the state of the tenant's budget by ingested usage; None without a budget."""
    if limits.budget_nano is None:
        return None
    kind: BudgetPeriod = "day" if limits.budget_period == "day" else "month"
    now = timezone.now()
    name, end = budget_period(kind, now)
    start = now.astimezone(dt.UTC).date()
    start, last = start.replace(day=1) if kind == "month" else start, end.date() - dt.timedelta(days=1)
    spent = spent_nano(tenant=limits.tenant_id, key_id=None, start=start, end=last, prices=prices)
    unpriced = usage_unpriced(tenant=limits.tenant_id, start=start, end=last)
    return BudgetState(name, limits.budget_nano, spent, end, unpriced)
