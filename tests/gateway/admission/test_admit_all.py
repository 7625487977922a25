"""Admission of a call of several requests: all of them or none, in turn with the tenant's other calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contracts.limits import Limit, LimitsRoute
from gateway.errors import GatewayError, RateLimited, TokensLimited
from tests.gateway.admission.conftest import Valkey, until
from tests.gateway.admission.test_admit import over, plan_of


def test_a_call_is_admitted_whole_and_settled_by_request(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits = LimitsRoute((Limit("tokens", 1000), Limit("concurrency", 3)))
        async with over(valkey, tenant__acme=limits) as running:
            plan = plan_of(running, "k")
            for _ in range(4):
                tickets = await running.admission.admit_all("acme", [(plan, 200, 100)] * 3)
                assert len(tickets) == 3
                for ticket in tickets:
                    ticket.count(1, 0, 1)
                    ticket.settle()
            assert plan.places[0].used == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (Limit("tokens", 800), "limit 800 tokens per minute, requested 900"),
        (Limit("requests", 2), "limit 2 requests per minute, requested 3. Send fewer prompts"),
        (Limit("concurrency", 2), "tenant acme may have 2 concurrent requests.*Send at most 2 prompts"),
    ],
)
def test_a_call_beyond_a_limit_is_refused_without_taking_anything(
    valkey: Valkey, limit: Limit, message: str
) -> None:
    async def scenario() -> None:
        async with over(valkey, tenant__acme=LimitsRoute((limit,))) as running:
            plan = plan_of(running, "k")
            with pytest.raises(RateLimited, match=message) as refused:
                await running.admission.admit_all("acme", [(plan, 200, 100)] * 3)
            assert (refused.value.after, refused.value.limit) == (None, limit.kind)
            (await running.admit(200, 600 if limit.kind == "tokens" else 0)).settle()

    asyncio.run(scenario())


def test_a_refused_call_gives_back_what_its_first_requests_took(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits: dict[str, Any] = {
            "tenant__acme": LimitsRoute((Limit("tokens", 1000), Limit("concurrency", 3))),
            "key__full": LimitsRoute((Limit("tokens", 100),)),
        }
        async with over(valkey, **limits) as running:
            free, full = plan_of(running, "free"), plan_of(running, "full")
            (await running.admission.admit(full, 60, 0)).count(60, 0, 0)
            with pytest.raises(
                TokensLimited, match=r"^prompt\[1\]: Rate limit reached for key full"
            ) as refused:
                await running.admission.admit_all("acme", [(free, 600, 0), (full, 60, 0)])
            assert refused.value.param == "prompt[1]"
            # One of the three places and 60 of the 1,000 tokens are still taken.
            assert free.places[0].used == 1
            (await running.admission.admit(free, 900, 0)).settle()

    asyncio.run(scenario())


def test_calls_of_a_tenant_take_places_in_turn(valkey: Valkey) -> None:
    """Four calls of three places each compete for four: any two that mix would block each other."""

    async def scenario() -> None:
        limits = LimitsRoute((Limit("concurrency", 4),))
        async with over(valkey, queue=30.0, tenant__acme=limits) as running:
            plan = plan_of(running, "k")

            async def call() -> None:
                tickets = await running.admission.admit_all("acme", [(plan, 1, 1)] * 3)
                assert plan.places[0].used <= 4
                await asyncio.sleep(0)
                for ticket in tickets:
                    ticket.settle()

            await asyncio.gather(*[call() for _ in range(4)])
            assert plan.places[0].used == 0

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_while_it_waits_holds_nothing(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits = LimitsRoute((Limit("concurrency", 2),))
        async with over(valkey, queue=30.0, tenant__acme=limits) as running:
            plan, held = plan_of(running, "k"), await running.admit()
            waiting = asyncio.create_task(running.admission.admit_all("acme", [(plan, 1, 1)] * 2))
            await until(lambda: plan.places[0].waiting)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            held.settle()
            assert plan.places[0].used == 0
            for ticket in await running.admission.admit_all("acme", [(plan, 1, 1)] * 2):
                ticket.settle()

    asyncio.run(scenario())


def test_a_model_without_a_price_is_named(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with over(valkey, tenant__acme=LimitsRoute((Limit("budget", 10**9),))) as running:
            with pytest.raises(GatewayError, match=r"^prompt\[0\]: The budget of tenant acme cannot"):
                await running.admission.admit_all("acme", [(plan_of(running, "k"), 1, 1)])

    asyncio.run(scenario())
