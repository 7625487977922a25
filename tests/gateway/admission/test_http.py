"""Limits as a client sees them: OpenAI's status, codes and headers, waits, and what is settled after."""

from __future__ import annotations

import datetime as dt
import json
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from contracts.limits import MAX_AMOUNT, PREPAID, Limit, LimitsRoute, RateRoute, budget_key, budget_period
from tests.gateway.conftest import ACME, UMBRELLA, ControlPlane, GatewayProcess, route_table
from tests.waiting import eventually

RATES = {"base": RateRoute(10, 1, 20), "base/acme/bot": RateRoute(100, 100, 100)}


def ask(gateway: GatewayProcess, key: str = ACME, *, model: str = "base", **plan: Any) -> httpx.Response:
    plan = {"tokens": 4, "delay": 0, **plan}
    stream, longest = plan.pop("stream", False), plan.pop("max_tokens", 16)
    body = {
        "model": model,
        "stream": stream,
        "max_tokens": longest,
        "messages": [{"role": "user", "content": json.dumps(plan)}],
    }
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(gateway.url + "/v1/chat/completions", json=body, headers=headers, timeout=30)


@pytest.fixture
def limited(gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> Any:
    """Publish limits, each test's under its own scope."""

    def publish(**scopes: LimitsRoute) -> GatewayProcess:
        named = {name.replace("__", ":").replace("_", "/"): route for name, route in scopes.items()}
        control_plane.replace(gateway, replace(route_table(upstream), limits=named, rates=RATES))
        return gateway

    return publish


def warm(gateway: GatewayProcess, key: str = ACME) -> None:
    """Wait for the end of the emptied server's quarantine: requests for a place wait for it."""
    eventually(lambda: ask(gateway, key).status_code == 200)


@pytest.mark.costly("starts a gateway of its own")
def test_requests_are_refused_as_openai_refuses_them(limited: Any) -> None:
    gateway = limited(tenant__acme=LimitsRoute((Limit("requests", 5), Limit("tokens", 100_000))))
    answers = [ask(gateway) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    first, refused = answers[0].headers, answers[-1]
    assert first["x-ratelimit-limit-requests"] == "5"
    assert first["x-ratelimit-remaining-requests"] == "4"
    assert first["x-ratelimit-reset-requests"] in ("1m1s", "1m2s")
    assert first["x-ratelimit-limit-tokens"] == "100000"
    assert 99_900 < int(first["x-ratelimit-remaining-tokens"]) < 100_000
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
    assert "limit 5 requests per minute" in error["message"]
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 50 <= int(refused.headers["retry-after"]) <= 62
    assert 50_000 <= int(refused.headers["retry-after-ms"]) <= 62_000
    assert ask(gateway, UMBRELLA).status_code == 200, "another tenant's limits are its own"
    assert "x-ratelimit-limit-requests" not in ask(gateway, UMBRELLA).headers


def test_the_official_client_reads_the_refusal(limited: Any) -> None:
    gateway = limited(tenant__acme=LimitsRoute((Limit("requests", 0),)))
    client = openai.OpenAI(base_url=gateway.url + "/v1", api_key=ACME, max_retries=0)
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="base", messages=[{"role": "user", "content": "x"}])
    assert refused.value.code == "rate_limit_exceeded"


def test_every_scope_holds(limited: Any) -> None:
    gateway = limited(
        tenant__acme=LimitsRoute((Limit("requests", 100),)),
        key__k1=LimitsRoute((Limit("requests", 50),)),
        project__acme_p1=LimitsRoute((Limit("requests", 40),)),
        model__acme_bot=LimitsRoute((Limit("requests", 3),)),
    )
    # A refusal of the test before is believed for a second.
    warm(gateway)
    assert [ask(gateway, model="bot@prod").status_code for _ in range(4)] == [200, 200, 200, 429]
    answer = ask(gateway)
    assert (answer.status_code, answer.headers["x-ratelimit-limit-requests"]) == (200, "40")


def test_what_the_backend_refuses_counts(limited: Any) -> None:
    """A grammar that the worker refuses cost it a compilation."""
    gateway = limited(key__k2=LimitsRoute((Limit("requests", 3),)))
    answers = [ask(gateway, UMBRELLA, fail=400) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [400, 400, 400, 429]
    assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"


def test_tokens_are_reserved_and_settled(limited: Any) -> None:
    # Usage of other tests still counts for the tenant: the gateway reports it to the emptied server.
    gateway = limited(model__acme_base=LimitsRoute((Limit("tokens", 1000),)))
    # Reserved about 60 + 900, used 11 + 4: a second one finds room.
    for _ in range(3):
        assert ask(gateway, max_tokens=900).status_code == 200
    left = int(ask(gateway, max_tokens=1).headers["x-ratelimit-remaining-tokens"])
    assert 1000 - 4 * 15 - 60 <= left <= 1000 - 3 * 15
    large = ask(gateway, max_tokens=1000)
    assert (large.status_code, large.json()["error"]["type"]) == (429, "tokens")
    assert "Request too large" in large.json()["error"]["message"]
    assert large.headers["x-should-retry"] == "false"


def test_a_hang_up_and_a_dead_backend_settle_too(limited: Any) -> None:
    gateway = limited(tenant__acme=LimitsRoute((Limit("tokens", 2000), Limit("concurrency", 1))))
    body = {"tokens": 500, "delay": 0.01}
    content = json.dumps(body)
    request = {
        "model": "base",
        "stream": True,
        "max_tokens": 1500,
        "messages": [{"role": "user", "content": content}],
    }
    headers = {"Authorization": f"Bearer {ACME}"}
    with httpx.stream("POST", gateway.url + "/v1/chat/completions", json=request, headers=headers) as stream:
        assert stream.status_code == 200
        next(stream.iter_lines())
    # The place and most of the tokens are free again as soon as the gateway sees the hang-up.
    assert ask(gateway, max_tokens=1500).status_code == 200
    assert ask(gateway, fail="cut", stream=True, max_tokens=1500).status_code == 200
    assert ask(gateway, fail=500, max_tokens=1500).status_code >= 500
    assert ask(gateway, max_tokens=1500).status_code == 200


def test_a_full_limit_is_waited_for(limited: Any) -> None:
    gateway = limited(tenant__acme=LimitsRoute((Limit("concurrency", 1),)))
    with ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        answers = [pool.submit(ask, gateway, tokens=10, delay=0.03) for _ in range(3)]
        assert [answer.result().status_code for answer in answers] == [200] * 3
        assert time.monotonic() - began > 3 * 0.3


@pytest.mark.costly("starts a gateway of its own")
def test_a_queue_has_a_deadline(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    own_gateway.environ["GRAFTWORK_GATEWAY_QUEUE_SECONDS"] = "2"
    own_gateway.environ["GRAFTWORK_GATEWAY_QUEUE_LENGTH"] = "1"
    limits = {"tenant:acme": LimitsRoute((Limit("concurrency", 1),))}
    control_plane.publish(replace(route_table(upstream), limits=limits))
    own_gateway.start()
    warm(own_gateway)
    before = len(httpx.get(upstream + "/log").json())
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(ask, own_gateway, stream=True, tokens=100, delay=0.05)
        eventually(lambda: len(httpx.get(upstream + "/log").json()) > before)
        # One of them waits; for the other the queue is full.
        others = [pool.submit(ask, own_gateway) for _ in range(2)]
        done, waiting = wait(others, return_when=FIRST_COMPLETED)
        assert [other.done() for other in (*waiting, running)] == [False, False]
        third = done.pop().result()
        assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        refused = waiting.pop().result()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert not running.done(), "the queue has its own deadline"
        assert running.result().status_code == 200


def budget_base(control_plane: ControlPlane, scope: str, spent: int) -> None:
    name, _ = budget_period("month", dt.datetime.now(dt.UTC))
    cut = int(time.time() * 1000) - 1000
    control_plane.client.hset(budget_key(scope, name), mapping={"base": spent, "cut": cut})


def test_a_budget_stops_and_says_so(limited: Any, control_plane: ControlPlane) -> None:
    gateway = limited(key__k1=LimitsRoute((Limit("budget", 10_000, alert=5_000),)))
    unknown = ask(gateway)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "limits_unavailable")
    budget_base(control_plane, "key:k1", 0)
    # 11 prompt tokens (5 of them cached) and 4 more: 6*10 + 5*1 + 4*20 = 145 nano-units each.
    assert ask(gateway).status_code == 200
    budget_base(control_plane, "key:k1", 9_990)
    eventually(lambda: ask(gateway).status_code == 429)
    spent = ask(gateway)
    assert spent.json()["error"]["code"] == spent.json()["error"]["type"] == "insufficient_quota"
    assert spent.headers["x-should-retry"] == "false"


def test_calls_stop_when_nothing_prepaid_is_left_and_go_on_after_a_top_up(
    limited: Any, control_plane: ControlPlane
) -> None:
    """Beside a budget of the same tenant, which has room all the while."""
    limits = (Limit("prepaid", MAX_AMOUNT), Limit("budget", 10_000))
    gateway = limited(tenant__acme=LimitsRoute(limits))
    budget_base(control_plane, "tenant:acme", 0)
    prepaid_left(control_plane, "tenant:acme", 1000)
    eventually(lambda: ask(gateway).status_code == 200)
    prepaid_left(control_plane, "tenant:acme", 100)
    eventually(lambda: ask(gateway).status_code == 429)
    refused = ask(gateway)
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert "prepaid balance" in refused.json()["error"]["message"]
    assert (refused.headers["x-should-retry"], refused.headers["retry-after"]) == ("false", "60")
    prepaid_left(control_plane, "tenant:acme", 100_000)
    eventually(lambda: ask(gateway).status_code == 200)


def prepaid_left(control_plane: ControlPlane, scope: str, left: int) -> None:
    base, cut = MAX_AMOUNT - left, int(time.time() * 1000) - 1000
    control_plane.client.hset(budget_key(scope, PREPAID), mapping={"base": base, "cut": cut})


def test_a_budget_does_not_let_an_unpriced_model_through(limited: Any, control_plane: ControlPlane) -> None:
    gateway = limited(tenant__umbrella=LimitsRoute((Limit("budget", 10_000),)))
    budget_base(control_plane, "tenant:umbrella", 0)
    assert ask(gateway, UMBRELLA).status_code == 200
    version = httpx.get(gateway.url + "/readyz").json()["routes_version"] + 1
    control_plane.change(version, "rates/base", None)
    gateway.wait_version(version)
    answer = ask(gateway, UMBRELLA)
    assert answer.status_code == 429
    assert "has no price" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_two_gateways_and_a_kill(
    control_plane: ControlPlane, redis_url: str, upstream: str, tmp_path: Path
) -> None:
    gateways = [
        GatewayProcess(
            redis_url,
            tmp_path / name,
            tmp_path / f"{name}.log",
            environ={"GRAFTWORK_GATEWAY_PROCESSES": processes},
        )
        for name, processes in (("one", "2"), ("two", "1"))
    ]
    limits = {
        "tenant:acme": LimitsRoute((Limit("requests", 120),)),
        "tenant:umbrella": LimitsRoute((Limit("concurrency", 2),)),
    }
    control_plane.publish(replace(route_table(upstream), limits=limits))
    try:
        for gateway in gateways:
            gateway.start()
            warm(gateway, UMBRELLA)
        accepted, began = 0, time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            # A lease that one process drew and did not spend is free again after two seconds. After a minute
            # its first requests have left the window.
            while accepted < 0.95 * 120 and time.monotonic() - began < 40:
                answers = list(pool.map(lambda number: ask(gateways[number % 2]), range(100)))
                assert {answer.status_code for answer in answers} <= {200, 429}
                accepted += sum(answer.status_code == 200 for answer in answers)
                # Longer than such a lease.
                time.sleep(2.5)
        assert 0.95 * 120 <= accepted <= 120
        with ThreadPoolExecutor(4) as pool:
            for _ in range(2):
                pool.submit(httpx_ignoring, gateways[0])
            eventually(lambda: ask(gateways[1], UMBRELLA).status_code == 429)
            gateways[0].kill()
            # The dead gateway's places are free once it has not been heard of for ten seconds.
            eventually(lambda: ask(gateways[1], UMBRELLA).status_code == 200)
    finally:
        for gateway in gateways:
            gateway.stop()


def httpx_ignoring(gateway: GatewayProcess) -> None:
    try:
        ask(gateway, UMBRELLA, tokens=1000, delay=0.1)
    except httpx.TransportError:
        return
