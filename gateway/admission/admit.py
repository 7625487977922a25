"""Admission: reserves a request's usage under every limit that applies, and settles it afterwards.

A request is admitted without waiting if the leases in hand suffice. Otherwise it is refused at once if a
limit is known to be full, and else waits in the queue for a place. Windows and budgets are drawn last, so
that a request is counted at the moment when it goes to the backend.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from contracts.limits import Limit, LimitsRoute, RateRoute
from contracts.route_table import RouteTable
from gateway.admission import clock
from gateway.admission.account import Account
from gateway.admission.batch import demand, refuse_sums
from gateway.admission.broker import Broker
from gateway.admission.budget import BudgetAccount
from gateway.admission.concurrency import ConcurrencyAccount
from gateway.admission.plan import Plan, Ticket, refuse
from gateway.admission.window import WindowAccount
from gateway.api.adapters import naming_prompt
from gateway.api.prompts import BYTES_A_TOKEN, num_prompts
from gateway.api.schema import EMBEDDINGS, SCORING, Call
from gateway.api.scoring import TEMPLATE_TOKENS, prompt_bound
from gateway.routing import Caller

DEFAULT_COMPLETION_TOKENS: Final = 4096
"""Reserved for an answer that the client does not bound; tokens beyond it are charged afterwards."""
PRIORITY: Final = 5
"""Priority where no limits state one."""
_SWEEP_SECONDS: Final = 60.0
_PLANS: Final = 50_000
Reservation = tuple[Plan, int, int]
"""A request's plan, prompt tokens and completion tokens."""


def reservation(
    call: Call, body_bytes: int, max_model_len: int, template: int = TEMPLATE_TOKENS
) -> tuple[int, int]:
    """Return (prompt tokens, completion tokens) to reserve.

    Prompt tokens come from the body's size, four bytes a token; images and token ids are counted themselves.
    Scores, reranks and classifications reserve an upper bound: a query is read once for each document,
    with at most `template` tokens of a chat template.
    """
    if call.path in SCORING:
        return prompt_bound(call, max_model_len, template), 0
    parameters = call.parameters
    prompts = num_prompts(parameters)
    tokens = call.prompt_estimate if _has_parts(parameters) else body_bytes // BYTES_A_TOKEN + 1
    tokens = min(tokens, max_model_len * prompts)
    if call.path == EMBEDDINGS:
        return tokens, 0
    longest = parameters.get("max_completion_tokens") or parameters.get("max_tokens")
    longest = min(DEFAULT_COMPLETION_TOKENS if longest is None else longest, max_model_len)
    return tokens, longest * parameters.get("n", 1) * prompts


def _has_parts(parameters: Mapping[str, Any]) -> bool:
    if messages := parameters.get("messages"):
        return any(type(message.get("content")) is list for message in messages)
    return type(parameters.get("prompt") or parameters.get("input")) is list


class Admission:
    """All limits of this process. Its broker must be running."""

    def __init__(self, broker: Broker, *, queue_seconds: float, queue_length: int) -> None:
        """A request waits at most `queue_seconds` for a place, in a queue of `queue_length` per limit."""
        self._broker = broker
        self._queue_seconds = queue_seconds
        self._queue_length = queue_length if queue_seconds else 0
        self._accounts: dict[str, Account] = {}
        self._dropped: WeakValueDictionary[str, Account] = WeakValueDictionary()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._plans: dict[tuple[str, str], Plan] = {}
        self._limits: Mapping[str, LimitsRoute] = {}
        self._rates: Mapping[str, RateRoute] = {}
        self._swept = clock.now()

    def plan(self, table: RouteTable, caller: Caller, base: str, model: str) -> Plan:
        """Return the limits that apply. `model` is the client's model name, `base` its base model."""
        if table.limits is not self._limits or table.rates is not self._rates:
            self._plans.clear()
            self._limits, self._rates = table.limits, table.rates
        name = (caller.key_id, model)
        plan = self._plans.get(name)
        if plan is None or plan.ends_at < time.time():
            plan = self._plans[name] = self._make(caller, base, model.partition("@")[0])
        return plan

    async def admit(self, plan: Plan, prompt: int, completion: int, deadline: float | None = None) -> Ticket:
        """Reserve one request with these token counts.

        `deadline`, by `clock`, ends the wait for places; by default it is the queue's time from now.

        Raises:
            RateLimited: a limit is reached.
            QuotaExceeded: a budget is spent, or the model has no price to hold it against.
            LimitsUnavailable: a budget's state cannot be read at this moment.
        """
        tokens, nano = prompt + completion, plan.reserve(prompt, completion)
        now = clock.now()
        if plan.has(tokens, nano, now):
            return plan.take(tokens, nano, now)
        plan.refuse_known(tokens, nano, now)
        held: list[ConcurrencyAccount] = []
        try:
            if deadline is None:
                deadline = now + self._queue_seconds
            for places in plan.places:
                await self._take_place(places, plan.priority, deadline)
                held.append(places)
            slices, at = await plan.draw(tokens, nano)
        except BaseException:
            for places in held:
                places.give()
            raise
        ticket = Ticket(plan, tokens, nano, slices, at)
        ticket.waited = at - now
        return ticket

    async def admit_all(self, tenant: str, reservations: Sequence[Reservation]) -> list[Ticket]:
        """Reserve several requests of one call of `tenant`, or none of them.

        Raises:
            RateLimited, QuotaExceeded, LimitsUnavailable: as `admit`; names the prompt if one is at fault.
        """
        demands = [
            demand(index, plan, prompt, completion)
            for index, (plan, prompt, completion) in enumerate(reservations)
        ]
        refuse_sums(demands, clock.now())
        tickets: list[Ticket] = []
        deadline = clock.now() + self._queue_seconds
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        # Without turns two calls could each hold places that the other waits for.
        async with turn:
            try:
                for index, (plan, prompt, completion) in enumerate(reservations):
                    with naming_prompt(index):
                        tickets.append(await self.admit(plan, prompt, completion, deadline))
            except BaseException:
                for ticket in tickets:
                    ticket.settle()
                raise
        return tickets

    async def _take_place(self, places: ConcurrencyAccount, priority: int, deadline: float) -> None:
        if places.has(clock.now()):
            places.take()
            return
        seconds = max(0.0, deadline - clock.now())
        if refused := await places.wait(priority, seconds, self._queue_length):
            raise refuse(places, 1, refused)

    def _make(self, caller: Caller, base: str, model: str) -> Plan:
        now = clock.now()
        if len(self._plans) > _PLANS or now - self._swept > _SWEEP_SECONDS:
            self.sweep(now)
        tenant = caller.tenant
        scopes = (
            f"key:{caller.key_id}",
            f"project:{tenant}/{caller.project}",
            f"tenant:{tenant}",
            f"model:{tenant}/{model}",
        )
        rates = (self._rates.get(path) for path in (f"{base}/{tenant}/{model}", f"{base}/{tenant}", base))
        plan = Plan(PRIORITY, next(filter(None, rates), None))
        routes = [(scope, self._limits[scope]) for scope in scopes if scope in self._limits]
        plan.priority = next((r.priority for _, r in routes if r.priority is not None), PRIORITY)
        plan.weight = next((r.weight for scope, r in routes if scope == scopes[2] and r.weight), 1.0)
        for scope, route in routes:
            for limit in route.limits:
                self._add(plan, scope, limit)
        return plan

    def _add(self, plan: Plan, scope: str, limit: Limit) -> None:
        if limit.kind == "concurrency":
            plan.places.append(self._account(ConcurrencyAccount(self._broker, scope, limit)))
        elif limit.kind in ("budget", "prepaid"):
            budget = self._account(BudgetAccount(self._broker, scope, limit, dt.datetime.now(dt.UTC)))
            plan.budgets.append(budget)
            plan.ends_at = min(plan.ends_at, budget.ends_at)
        else:
            account = self._account(WindowAccount(self._broker, scope, limit))
            (plan.requests if limit.kind == "requests" else plan.tokens).append(account)

    def _account(self, fresh: Any) -> Any:
        """Return the account under `fresh`'s key, with its limit: the one in use, else `fresh` itself."""
        account: Any = self._accounts.get(fresh.key)
        if account is None:
            # A request from before the account was dropped may still hold it: there must not be two accounts.
            account = self._accounts[fresh.key] = self._dropped.pop(fresh.key, fresh)
            self._broker.add(account)
        account.limit = fresh.limit
        return account

    def sweep(self, now: float) -> None:
        """Drop accounts that have been idle for long, as of `now` by `clock`."""
        self._swept = now
        self._plans.clear()
        for key, account in list(self._accounts.items()):
            if account.idle(now):
                self._dropped[key] = self._accounts.pop(key)
                self._broker.drop(account)
