"""The part of the route table that says what a scope may use."""

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
"""Stands where a budget's key has its period."""
MAX_AMOUNT: Final = 9 * 10**15
"""Largest limit: Redis' scripts count in doubles, exact up to 2^53. As a budget, 9 million units."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a scope.

    Attributes:
        kind: what is counted: requests or tokens in any span of `seconds`, requests under way at once
            (`concurrency`), or nano-units of the price book's currency: in a UTC `period` (`budget`), or of
            what is paid in advance and granted as credits (`prepaid`), whose `amount` is MAX_AMOUNT.
        amount: how much may be; 0 lets nothing through.
        seconds: length of the sliding window of `requests` and `tokens`.
        period: what a `budget` holds for.
        alert: of a `budget`, the nano-units from which on answers carry a warning; None for never.
    """

    kind: LimitKind
    amount: int
    seconds: float = 60.0
    period: BudgetPeriod = "month"
    alert: int | None = None


@dataclass(frozen=True, slots=True)
class LimitsRoute:
    """What a scope may use. Every scope that a request falls under holds at once.

    Scope ids: `tenant:<tenant>`, `project:<tenant>/<project>`, `key:<public id>`, and
    `model:<tenant>/<base or adapter>` for one tenant's use of one model.

    Attributes:
        priority: who goes first where requests wait for a place, 0 (first) to 9; a key's stands before
            its project's, that before its tenant's; None leaves it to those.
        weight: of a tenant's scope, its share of a busy worker relative to other tenants'; None is 1.
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
    """What a token costs today, in nano-units of the price books' currency; for budgets, not for bills.

    `request_nano` is what each attempt costs besides.
    """

    input_nano: int
    cached_input_nano: int
    output_nano: int
    request_nano: int = 0

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(**known_fields(cls, value))


def budget_period(period: BudgetPeriod, now: dt.datetime) -> tuple[str, dt.datetime]:
    """Name (`2026-11` or `2026-11-21`) and end of the UTC period that `now` lies in."""
    now = now.astimezone(dt.UTC)
    start = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return f"{start:%Y-%m-%d}", start + dt.timedelta(days=1)
    start = start.replace(day=1)
    return f"{start:%Y-%m}", (start + dt.timedelta(days=32)).replace(day=1)


def budget_key(scope: str, period: str) -> str:
    """Redis hash of a budget's account. The control plane writes `base` and `cut`, gateways the rest.

    `base` is what the database holds of the period's usage, at price; `cut` the Unix milliseconds up to
    which every report of gateways is in it. Under `PREPAID` instead of a period, `base` is MAX_AMOUNT less
    what is left: so a top-up is a smaller base, and the limit itself stays as it is.
    """
    return f"graftwork:admission:budget:{period}:{scope}"
