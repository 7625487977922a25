"""Admission in one process over a real server: order of the queue, what is reserved, changes of limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from contracts.limits import Limit, LimitsRoute
from contracts.route_table import RouteTable
from gateway.admission import Plan, Ticket, reservation
from gateway.admission.headers import duration
from gateway.api.schema import parse
from gateway.errors import QuotaExceeded, RateLimited, TokensLimited, render
from gateway.routing import Caller
from tests.gateway.admission.conftest import Gate, Valkey, gate


@contextlib.asynccontextmanager
async def over(valkey: Valkey, *, queue: float = 2.0, **scopes: LimitsRoute) -> AsyncIterator[Gate]:
    """Run a process with limits by scope; `__` stands for the colon."""
    async with gate(valkey.url, "slot", [], queue=queue) as running:
        limits = {name.replace("__", ":"): route for name, route in scopes.items()}
        running.routes = RouteTable(limits=limits)
        yield running


def plan_of(running: Gate, key: str) -> Plan:
    return running.admission.plan(running.routes, Caller(key, "acme", "p"), "base", "base")


def test_the_queue_goes_by_priority_then_by_arrival(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits: dict[str, Any] = {
            "tenant__acme": LimitsRoute((Limit("concurrency", 1),), priority=4),
            "key__first": LimitsRoute(priority=0),
            "key__last": LimitsRoute(priority=9),
        }
        async with over(valkey, **limits) as running:
            order: list[str] = []

            async def ask(name: str) -> None:
                ticket = await running.admission.admit(plan_of(running, name.rstrip("12")), 1, 1)
                order.append(name)
                ticket.settle()

            held = await running.admission.admit(plan_of(running, "any"), 1, 1)
            waiting = []
            for name in ("last", "any1", "any2", "first"):
                waiting.append(asyncio.create_task(ask(name)))
                await asyncio.sleep(0.01)
            held.settle()
            await asyncio.gather(*waiting)
            assert order == ["first", "any1", "any2", "last"]

    asyncio.run(scenario())


def test_without_a_queue_only_a_full_limit_refuses(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits = LimitsRoute((Limit("concurrency", 30),))
        async with over(valkey, queue=0.0, tenant__acme=limits) as running:
            asked = [asyncio.create_task(running.admit()) for _ in range(40)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, RateLimited)]
            assert len(refused) == 10
            for answer in answers:
                if isinstance(answer, Ticket):
                    answer.settle()
            (await running.admit()).settle()

    asyncio.run(scenario())


def test_a_limit_of_none_at_a_time_refuses_without_waiting(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits = LimitsRoute((Limit("concurrency", 0),))
        async with over(valkey, queue=3600.0, tenant__acme=limits) as running:
            with pytest.raises(RateLimited):
                await asyncio.wait_for(running.admit(), 60)

    asyncio.run(scenario())


def test_whoever_leaves_the_queue_takes_no_place_along(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with over(valkey, tenant__acme=LimitsRoute((Limit("concurrency", 1),))) as running:
            held = await running.admit()
            for _ in range(20):
                waiting = asyncio.create_task(running.admit())
                await asyncio.sleep(0.005)
                # Freed and cancelled in the same turn of the loop.
                held.settle()
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    (await waiting).settle()
                held = await running.admit()
            held.settle()

    asyncio.run(scenario())


def test_a_refusal_gives_back_what_was_taken_before_it(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits = (Limit("requests", 10), Limit("tokens", 100), Limit("concurrency", 2))
        async with over(valkey, tenant__acme=LimitsRoute(limits)) as running:
            tickets = [await running.admit(45), await running.admit(45)]
            tickets[0].settle()
            with pytest.raises(TokensLimited):
                await running.admit(60)
            # Neither a request nor the place is gone with the refused one.
            tickets.append(await running.admit(50))
            headers = dict(running.plan.headers(0.0))
            assert headers[b"x-ratelimit-limit-requests"] == b"10"
            for ticket in tickets[1:]:
                ticket.settle()
            came = await running.admitted(20)
            assert came == 10 - 3

    asyncio.run(scenario())


def test_a_changed_limit_holds_from_the_next_request_on(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with over(valkey, tenant__acme=LimitsRoute((Limit("requests", 3),))) as running:
            assert await running.admitted(5) == 3
            raised = {"tenant:acme": LimitsRoute((Limit("requests", 8),))}
            running.routes = replace(running.routes, limits=raised)
            await asyncio.sleep(1.1)  # a refusal is believed for a second
            assert await running.admitted(9) == 5
            running.routes = replace(running.routes, limits={})
            assert await running.admitted(50) == 50

    asyncio.run(scenario())


def test_accounts_that_nobody_uses_are_forgotten(valkey: Valkey) -> None:
    async def scenario() -> None:
        limits = (Limit("requests", 3), Limit("concurrency", 1))
        async with over(valkey, tenant__acme=LimitsRoute(limits)) as running:
            plan = running.plan
            held = await running.admit()
            await asyncio.sleep(2.5)  # the lease has ended
            running.admission.sweep(time.monotonic() + 1000)
            assert running.plan.requests[0] is plan.requests[0], "a request that is under way has it"
            held.settle()
            running.admission.sweep(time.monotonic() + 1000)
            # The place is still held, for the next request.
            assert running.broker._accounts == {plan.places[0]}

    asyncio.run(scenario())


CHAT = [{"role": "user", "content": "x" * 400}]


@pytest.mark.parametrize(
    ("fields", "reserved"),
    [
        ({"prompt": [1, 2, 3], "max_tokens": 10}, (3, 10)),
        ({"prompt": [1, 2, 3], "max_tokens": 10, "n": 3}, (3, 30)),
        ({"prompt": [1, 2, 3]}, (3, 4096)),
        ({"prompt": [1] * 9000, "max_tokens": 9000}, (8192, 8192)),
        ({"messages": CHAT, "max_tokens": 1}, (114, 1)),
        ({"messages": CHAT, "max_tokens": 1, "max_completion_tokens": 7}, (121, 7)),
    ],
)
def test_what_is_reserved(fields: dict[str, Any], reserved: tuple[int, int]) -> None:
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    text = orjson.dumps({"model": "base", **fields})
    found = reservation(parse(path, text), len(text), 8192)
    assert found[1] == reserved[1]
    assert abs(found[0] - reserved[0]) <= 8


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0s"), (1, b"1s"), (59, b"59s"), (60, b"1m0s"), (360, b"6m0s"), (3605, b"1h0m5s")],
)
def test_durations_read_as_openais(seconds: int, text: bytes) -> None:
    assert duration(seconds) == text


def test_retry_headers() -> None:
    assert render(RateLimited("x", after=0.2))[2] == {b"retry-after": b"1", b"retry-after-ms": b"200"}
    assert render(TokensLimited("x", after=None))[2] == {b"x-should-retry": b"false"}
    status, text, headers = render(QuotaExceeded("x", after=90.0))
    assert (status, headers) == (429, {b"retry-after": b"90", b"x-should-retry": b"false"})
    assert orjson.loads(text)["error"]["type"] == "insufficient_quota"
