"""Plans: the limits that apply to one key's requests to one model. Tickets: one request's reservations."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from contracts.limits import RateRoute
from gateway.admission import clock
from gateway.admission.account import Refused
from gateway.admission.budget import BudgetAccount
from gateway.admission.concurrency import ConcurrencyAccount
from gateway.admission.headers import BUDGET_ALERT, window_headers
from gateway.admission.window import WindowAccount
from gateway.errors import GatewayError, LimitsUnavailable, QuotaExceeded, RateLimited, TokensLimited
from gateway.http.asgi import Header

_Claim = tuple[WindowAccount | BudgetAccount, int, asyncio.Future[Any]]
"""An account, the amount claimed from it, and the pending result."""


@dataclass(slots=True)
class Plan:
    """Accounts by kind; `ends_at` (Unix seconds) is the end of the earliest budget period.

    `priority` and `weight` are LimitsRoute's, the latter the tenant's.
    """

    priority: int
    rate: RateRoute | None
    weight: float = 1.0
    requests: list[WindowAccount] = field(default_factory=list)
    tokens: list[WindowAccount] = field(default_factory=list)
    places: list[ConcurrencyAccount] = field(default_factory=list)
    budgets: list[BudgetAccount] = field(default_factory=list)
    ends_at: float = math.inf

    @classmethod
    def union(cls, plans: Sequence[Plan]) -> Self:
        """Return a plan of all accounts of `plans`, each once, for the headers of their common answer."""
        union = cls(plans[0].priority, None)
        for plan in plans:
            _add_new(union.requests, plan.requests)
            _add_new(union.tokens, plan.tokens)
            _add_new(union.budgets, plan.budgets)
        return union

    def reserve(self, prompt: int, completion: int) -> int:
        """Return the highest price of an attempt with these tokens. Raises QuotaExceeded as `price`."""
        if (rate := self._rate()) is None:
            return 0
        return prompt * rate.input_nano + rate.most_output_cost(completion) + rate.request_nano

    def price(self, prompt: int, cached: int, completion: int, reasoning: int) -> int:
        """Return the price of one attempt in nano-units; 0 without a budget. `reasoning` is in `completion`.

        Raises:
            QuotaExceeded: there is a budget, but the model has no price.
        """
        if (rate := self._rate()) is None:
            return 0
        return (
            (prompt - cached) * rate.input_nano
            + cached * rate.cached_input_nano
            + rate.output_cost(completion, reasoning)
            + rate.request_nano
        )

    def _rate(self) -> RateRoute | None:
        """Return the model's prices; None without a budget. Raises QuotaExceeded."""
        if not self.budgets:
            return None
        if self.rate is None:
            error = QuotaExceeded(
                f"The budget of {limit_scope(self.budgets[0].scope)} cannot be enforced: this model has no "
                "price. Ask the operator to set one."
            )
            error.limit = "budget"
            raise error
        return self.rate

    def has(self, tokens: int, nano: int, now: float) -> bool:
        """Return True if all leases in hand suffice."""
        for window in self.requests:
            if now >= window.until or window.left < 1:
                return False
        for window in self.tokens:
            if now >= window.until or window.left < tokens:
                return False
        for places in self.places:
            if not places.has(now):
                return False
        return all(budget.left >= nano for budget in self.budgets)

    def take(self, tokens: int, nano: int, now: float) -> Ticket:
        """Spend from the leases in hand, after `has` at `now`."""
        for window in self.requests:
            window.take(1)
        for places in self.places:
            places.take()
        for budget in self.budgets:
            budget.take(nano)
        return Ticket(self, tokens, nano, [window.take(tokens) for window in self.tokens], now)

    def refuse_known(self, tokens: int, nano: int, now: float) -> None:
        """Raise the error of `refuse` if a limit is known to have no room."""
        for need, windows in ((1, self.requests), (tokens, self.tokens)):
            for window in windows:
                if refused := window.refusal(need, now):
                    raise refuse(window, need, refused)
        for budget in self.budgets:
            if refused := budget.refusal(nano, now):
                raise refuse(budget, nano, refused)

    async def draw(self, tokens: int, nano: int) -> tuple[list[int], float]:
        """Take from every window and budget, or from none.

        Returns:
            The token windows' slices, and the time at which all of them counted.

        Raises:
            RateLimited, QuotaExceeded, LimitsUnavailable: see `refuse`.
        """
        while True:
            claims = self._claim(tokens, nano)
            try:
                # The claims are pending together and share a call.
                results = [await future for _, _, future in claims]
            except BaseException:
                _undo(claims)
                raise
            for (account, need, _), result in zip(claims, results, strict=True):
                if isinstance(result, Refused):
                    _undo(claims)
                    raise refuse(account, need, result)
            now = clock.now()
            windows = [*self.requests, *self.tokens]
            if all(window.counts(result, now) for window, result in zip(windows, results, strict=False)):
                return results[len(self.requests) : len(windows)], now
            # Another limit was slow, or this process was suspended: a window's grant has expired.
            _undo(claims)

    def _claim(self, tokens: int, nano: int) -> list[_Claim]:
        now = clock.now()
        claims: list[_Claim] = [
            (account, need, account.claim(need, now))
            for need, accounts in ((1, self.requests), (tokens, self.tokens))
            for account in accounts
        ]
        return claims + [(budget, nano, budget.claim(nano)) for budget in self.budgets]

    def headers(self, now: float) -> list[Header]:
        """Return the limit headers of an answer at `now`."""
        headers: list[Header] = []
        if self.requests:
            headers += window_headers(self.requests, now)
        if self.tokens:
            headers += window_headers(self.tokens, now)
        if any(budget.alerted for budget in self.budgets):
            headers.append(BUDGET_ALERT)
        return headers


class Ticket:
    """The reservations of one admitted request. `settle` must follow, however the request ends.

    Attributes:
        at: time of admission by `clock`; every limit had room for the request then.
        waited: seconds until it was admitted.
    """

    __slots__ = ("_completion", "_nano", "_prompt", "_slices", "_spent", "_tokens", "at", "plan", "waited")

    def __init__(self, plan: Plan, tokens: int, nano: int, slices: list[int], at: float) -> None:
        self.plan = plan
        self.at = at
        self._tokens = tokens
        self._nano = nano
        self._slices = slices
        self._prompt = self._completion = self._spent = 0
        self.waited = 0.0

    def count(self, prompt: int, cached: int, completion: int, reasoning: int = 0) -> None:
        """Add the usage of one attempt; `reasoning` tokens are among those of the completion."""
        self._prompt += prompt
        self._completion += completion
        self._spent += self.plan.price(prompt, cached, completion, reasoning)

    def settle(self) -> None:
        """Free the place, and correct the reservations to the counted usage. Never fails or waits."""
        plan = self.plan
        for places in plan.places:
            places.give()
        used = self._prompt + self._completion
        for window, slice_ in zip(plan.tokens, self._slices, strict=True):
            window.settle(slice_, self._tokens, used)
        for budget in plan.budgets:
            budget.settle(self._nano, self._spent)


def _add_new(accounts: list[Any], others: Sequence[Any]) -> None:
    accounts += [other for other in others if other not in accounts]


def refuse(
    account: WindowAccount | ConcurrencyAccount | BudgetAccount, need: int, refused: Refused
) -> GatewayError:
    """Return the error for a refusal."""
    error = _refusal(account, need, refused)
    error.limit = account.limit.kind
    return error


def _refusal(
    account: WindowAccount | ConcurrencyAccount | BudgetAccount, need: int, refused: Refused
) -> GatewayError:
    scope, limit = limit_scope(account.scope), account.limit
    if refused.unknown:
        return LimitsUnavailable(f"The remaining budget of {scope} cannot be determined now; retry soon.")
    if limit.kind == "prepaid":
        return QuotaExceeded(
            f"The prepaid balance and credits of {scope} are used up, or the remainder is less than this "
            "request may cost. Send a lower max_tokens, or top up.",
            after=refused.after,
        )
    if isinstance(account, BudgetAccount):
        return QuotaExceeded(
            f"The {limit.period}'s budget of {scope} is spent, or the remainder is less than this request "
            "may cost. Send a lower max_tokens, raise the budget, or wait for the next period.",
            after=refused.after,
        )
    if isinstance(account, ConcurrencyAccount):
        return RateLimited(
            f"{scope} has reached its limit of {limit.amount} concurrent requests, and none ended in time. "
            "Retry later or send fewer at once.",
            after=refused.after,
        )
    span = "minute" if limit.seconds == 60 else f"{limit.seconds:g} s"
    kind = RateLimited if limit.kind == "requests" else TokensLimited
    if need > limit.amount > 0:
        remedy = "a shorter prompt or a lower max_tokens" if limit.kind == "tokens" else "fewer prompts"
        return kind(
            f"Request too large for {scope}: limit {limit.amount} {limit.kind} per {span}, requested {need}. "
            f"Send {remedy}.",
            after=None,
        )
    return kind(
        f"Rate limit reached for {scope}: limit {limit.amount} {limit.kind} per {span}, requested {need}. "
        f"Please try again in {refused.after:.3g}s.",
        after=refused.after,
    )


def _undo(claims: list[_Claim]) -> None:
    for account, need, future in claims:
        if future.cancel() or future.cancelled():
            continue
        result = future.result()
        if isinstance(result, Refused):
            continue
        if isinstance(account, WindowAccount):
            account.settle(result, need, 0)
        else:
            account.settle(need, 0)


def limit_scope(scope: str) -> str:
    """Return a scope as error messages name it."""
    kind, _, name = scope.partition(":")
    return f"{kind} {name}"
