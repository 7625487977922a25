"""The sum of a call's requests under each limit, to refuse at once a call that cannot be admitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.admission.budget import BudgetAccount
from gateway.admission.concurrency import ConcurrencyAccount
from gateway.admission.plan import Plan, limit_scope, refuse
from gateway.admission.window import WindowAccount
from gateway.api.adapters import naming_prompt
from gateway.errors import RateLimited

Account = TypeVar("Account", ConcurrencyAccount, WindowAccount, BudgetAccount)


@dataclass(frozen=True, slots=True)
class Demand:
    """The reservation of one request under its plan: `tokens`, and `nano` units of budgets."""

    plan: Plan
    tokens: int
    nano: int


def demand(index: int, plan: Plan, prompt: int, completion: int) -> Demand:
    """Return the demand of prompt `index`. Raises QuotaExceeded if its model has no price."""
    with naming_prompt(index):
        return Demand(plan, prompt + completion, plan.reserve(prompt, completion))


def refuse_sums(demands: Sequence[Demand], now: float) -> None:
    """Raise the error of `refuse` if a limit is known to have no room for all requests together."""
    for places, need in _sums((places, 1) for item in demands for places in item.plan.places):
        _refuse_beyond(places, need)
    windows = [(window, 1) for item in demands for window in item.plan.requests]
    windows += [(window, item.tokens) for item in demands for window in item.plan.tokens]
    for window, need in _sums(windows):
        if refused := window.refusal(need, now):
            raise refuse(window, need, refused)
    for budget, need in _sums((budget, item.nano) for item in demands for budget in item.plan.budgets):
        if refused := budget.refusal(need, now):
            raise refuse(budget, need, refused)


def _sums(needs: Iterable[tuple[Account, int]]) -> Iterable[tuple[Account, int]]:
    sums: Counter[Account] = Counter()
    for account, need in needs:
        sums[account] += need
    return sums.items()


def _refuse_beyond(places: ConcurrencyAccount, need: int) -> None:
    """Raise RateLimited if the limit is lower than the number of the call's requests."""
    if need <= places.limit.amount:
        return
    error = RateLimited(
        f"{limit_scope(places.scope)} may have {places.limit.amount} concurrent requests, and each of this "
        f"call's {need} prompts is one. Send at most {places.limit.amount} prompts in a call."
    )
    error.limit = places.limit.kind
    raise error
