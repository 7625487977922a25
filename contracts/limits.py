"""The part of the route table that holds limits, scheduling weights and token rates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from contracts.known_fields import known_fields

LimitKind = Literal["requests", "tokens", "concurrency", "budget", "prepaid"]
BudgetPeriod = Literal["day", "month"]
_KINDS: Final = frozenset(("requests", "tokens", "concurrency", "budget", "prepaid"))
PREPAID: Final = "prepaid"
"""The period in the Redis key of a prepaid budget; see `budget_key`."""
MAX_AMOUNT: Final = 9 * 10**15
"""Largest limit: Redis' scripts count in doubles, exact up to 2^53. As a budget, 9 million units."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a scope.

    Attributes:
        kind: the counted quantity: requests or tokens in any span of `seconds`, simultaneous requests
            (`concurrency`), or nano-units of the price book's currency: in a UTC `period` (`budget`), or
            granted as prepaid credits (`prepaid`), whose `amount` is MAX_AMOUNT.
        amount: the maximum; 0 lets nothing through.
        seconds: length of the sliding window of `requests` and `tokens`.
        period: the period of a `budget`.
        alert: for a `budget`, the nano-units from which answers carry a warning; None for never.
    """

    kind: LimitKind
    amount: int
    seconds: float = 60.0
    period: BudgetPeriod = "month"
    alert: int | None = None


@dataclass(frozen=True, slots=True)
class LimitsRoute:
    """The limits of a scope. All scopes of a request apply at once.

    Scope ids: `tenant:<tenant>`, `project:<tenant>/<project>`, `key:<public id>`, and
    `model:<tenant>/<base or adapter>` for one tenant's use of one model.

    Attributes:
        priority: queue priority, 0 (first) to 9. A key's takes precedence over its project's, and that over
            its tenant's; None inherits.
        weight: for a tenant's scope, its share of a busy worker relative to other tenants'; None is 1.
    """

    limits: tuple[Limit, ...] = ()
    priority: int | None = None
    weight: float | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        limits = (Limit(**known_fields(Limit, limit)) for limit in value.get("limits", ()))
        known_limits = tuple(limit for limit in limits if limit.kind in _KINDS)
        return cls(known_limits, value.get("priority"), value.get("weight"))


@dataclass(frozen=True, slots=True)
class RateRoute:
    """Today's price of a token, in nano-units of the price books' currency; for budgets, not for bills.

    `request_nano` is charged for each attempt in addition. `reasoning_nano` is the price of output tokens of
    the thought; None where it is that of other output tokens.
    """

    input_nano: int
    cached_input_nano: int
    output_nano: int
    request_nano: int = 0
    reasoning_nano: int | None = None

    def output_cost(self, completion: int, reasoning: int) -> int:
        """Return the price of completion tokens, of which `reasoning` are of the thought."""
        by_thought = self.output_nano if self.reasoning_nano is None else self.reasoning_nano
        return (completion - reasoning) * self.output_nano + reasoning * by_thought

    def most_output_cost(self, completion: int) -> int:
        """Return the highest price of that many completion tokens."""
        return max(self.output_cost(completion, 0), self.output_cost(completion, completion))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(**known_fields(cls, value))


def budget_period(period: BudgetPeriod, now: dt.datetime) -> tuple[str, dt.datetime]:
    """Return the name (`2026-11` or `2026-11-21`) and end of the UTC period that `now` lies in."""
    now = now.astimezone(dt.UTC)
    start = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return f"{start:%Y-%m-%d}", start + dt.timedelta(days=1)
    start = start.replace(day=1)
    return f"{start:%Y-%m}", (start + dt.timedelta(days=32)).replace(day=1)


def budget_key(scope: str, period: str) -> str:
    """Return the name of a budget account's Redis hash. The control plane writes `base` and `cut`.

    Gateways write the other fields. `base` is the price of the period's usage in the database. `cut` is Unix
    milliseconds; all gateway reports up to then are in `base`. Under `PREPAID` as the period, `base` is
    MAX_AMOUNT minus the remaining credit, so a top-up lowers `base` and the limit stays the same.
    """
    return f"graftwork:admission:budget:{period}:{scope}"
