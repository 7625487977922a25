"""Dispatch when copies fail: real gateways in front of real servers that misbehave on demand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count, product
from typing import Any

import httpx
import pytest

from contracts.base_routes import BaseRoute, CanaryRoute, CopyRoute
from contracts.route_table import AdapterRoute, RouteTable
from gateway.routing.breaker import FAILURES_IN_A_ROW, FIRST_WAIT, LONGEST_WAIT
from gateway.routing.splits import passed_over
from tests.conftest import free_port
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.routing.conftest import server_thread, stand_ins
from tests.gateway.routing.standin import StandIn
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("gateways meet failing copies")

__all__ = ["server_thread", "stand_ins"]
_NUMBERS = count()


def body(model: str = "base", **rest: Any) -> dict[str, Any]:
    """A request whose prompt begins unlike any other's, so that any copy may be its own."""
    return {"model": model, "messages": ask(number=next(_NUMBERS), tokens=3), **rest}


@pytest.fixture
def copies(stand_ins: Callable[[int], list[StandIn]]) -> tuple[StandIn, StandIn]:
    first, second = stand_ins(2)
    return first, second


@pytest.fixture
def pair(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, copies: tuple[StandIn, StandIn]
) -> tuple[StandIn, StandIn]:
    """Two copies of one base with a shared gateway in front: for tests that need few retries."""
    control_plane.replace(pooled_gateway, route_table(*(copy.url for copy in copies), name=new_name()))
    return copies


@pytest.fixture
def own_pair(
    own_gateway: GatewayProcess, control_plane: ControlPlane, copies: tuple[StandIn, StandIn]
) -> tuple[StandIn, StandIn]:
    """Two copies with a gateway of this test's own, whose budget of retries is full."""
    control_plane.publish(route_table(*(copy.url for copy in copies)))
    own_gateway.start()
    return copies


def new_name() -> str:
    """A name for copies that no other test uses: a gateway remembers what became of each."""
    return f"copy{next(_NUMBERS)}"


FAULTS: list[dict[str, Any]] = [
    {"fault": "reset"},
    {"fault": "empty"},
    {"status": 502},
    {"status": 503},
    {"status": 504},
    {"status": 503, "retry_after": "1", "code": "unavailable"},
    {"status": 503, "retry_after": "Wed, 01 Jan 2020 00:00:00 GMT"},
    {"status": 503, "retry_after": "soon"},
    {"status": 503, "retry_after": "1", "code": "adapter_unavailable"},
    {"status": 429, "retry_after": "1", "code": "tenant_queue_full"},
]


@pytest.mark.costly("hundreds of requests over failing copies")
def test_another_copy_answers_and_each_attempt_is_metered(
    own_gateway: GatewayProcess, control_plane: ControlPlane, own_pair: tuple[StandIn, StandIn]
) -> None:
    failing, _ = own_pair
    seen = 0
    for fault, stream in product(FAULTS, (False, True)):
        failing.behave(**fault)
        answers = []
        while not failing.calls():
            answers.append(post(own_gateway, body(stream=stream)))
            assert answers[-1].status_code == 200, (fault, answers[-1].text)
            assert len(answers) < 40, fault
        seen += len(answers) + 1
        events = control_plane.wait_events(seen)
        last = [event for event in events if event.request_id == answers[-1].headers["x-request-id"]]
        assert [(event.attempt, event.status, event.endpoint) for event in last] == [
            (1, "error", "copy-1"),
            (2, "ok", "copy-2"),
        ], fault
        assert [event.completion_tokens for event in last] == [0, 3]
        failing.behave()
        while not failing.calls():
            answer = post(own_gateway, body())
            assert answer.status_code == 200, fault
            seen += 1


@pytest.mark.parametrize("fail", [400, 422, 500, 401, 404])
def test_what_another_copy_would_not_change_is_not_tried_again(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, fail: int
) -> None:
    control_plane.replace(gateway, route_table(upstream, upstream))
    for _ in range(8):
        answer = post(gateway, {"model": "base", "messages": ask(fail=fail)})
        assert answer.status_code == (fail if fail in (400, 422) else 502)
    # Eight attempts of eight requests: such errors neither retry nor open a breaker.
    assert [event.attempt for event in control_plane.wait_events(8)] == [1] * 8


def test_a_break_after_the_first_byte_is_never_tried_again(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, pair: tuple[StandIn, StandIn]
) -> None:
    for _ in range(3):
        answer = post(
            pooled_gateway,
            {"model": "base", "stream": True, "messages": ask(tokens=10, delay=0.01, fail="cut")},
        )
        assert answer.status_code == 200
        assert '"code":"upstream_error"' in answer.text
    events = control_plane.wait_events(3)
    assert {(event.attempt, event.status, event.completion_tokens) for event in events} == {(1, "error", 5)}
    assert sum(copy.calls() for copy in pair) == 3


def test_a_429_of_every_copy_is_the_clients(
    pooled_gateway: GatewayProcess, pair: tuple[StandIn, StandIn]
) -> None:
    for copy in pair:
        copy.behave(status=429, retry_after="7", code="tenant_queue_full")
    answer = post(pooled_gateway, body())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["code"] == "tenant_queue_full"
    assert [copy.calls() for copy in pair] == [1, 1]


def test_a_copy_that_says_when_to_come_back_is_left_alone_so_long(
    pooled_gateway: GatewayProcess, pair: tuple[StandIn, StandIn]
) -> None:
    busy, free = pair
    busy.behave(status=503, retry_after="60", code="unavailable")
    eventually(lambda: post(pooled_gateway, body()).status_code == 200 and busy.calls())
    for _ in range(40):
        assert post(pooled_gateway, body()).status_code == 200
    assert busy.calls() == 1
    # When the other copy is cooling down too, none is called and the client gets a retry-after.
    free.behave(status=503, retry_after="50", code="unavailable")
    assert post(pooled_gateway, body()).status_code == 503
    refused = post(pooled_gateway, body())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "upstream_unreachable"
    assert 1 <= int(refused.headers["retry-after"]) <= 50
    assert (busy.calls(), free.calls()) == (1, 1)


def test_a_copy_is_called_again_when_its_time_is_over(
    pooled_gateway: GatewayProcess, pair: tuple[StandIn, StandIn]
) -> None:
    busy, _ = pair
    busy.behave(status=503, retry_after="1", code="unavailable")
    eventually(lambda: post(pooled_gateway, body()).status_code == 200 and busy.calls())
    busy.behave()
    eventually(lambda: post(pooled_gateway, body()).status_code == 200 and busy.calls())


def most_failures(seconds: float) -> float:
    """Calls of a broken copy in `seconds`: those that open its breaker, then a probe after each wait."""
    return FAILURES_IN_A_ROW + 2 + seconds / (FIRST_WAIT / 2)


def test_a_breaker_opens_and_a_probe_closes_it(
    own_gateway: GatewayProcess, control_plane: ControlPlane, own_pair: tuple[StandIn, StandIn]
) -> None:
    """With every breaker open a request is refused at once, with 503 and the time of the next probe."""
    for copy in own_pair:
        copy.behave(fault="reset")
    began = time.monotonic()
    statuses = Counter(post(own_gateway, body()).status_code for _ in range(40))
    seconds = time.monotonic() - began
    assert statuses[502] >= 5
    assert statuses[503] >= 20
    assert sum(copy.calls() for copy in own_pair) <= 2 * most_failures(seconds)
    # Skip the request that is sent as the next probe.
    refused = next(answer for _ in range(5) if (answer := post(own_gateway, body())).status_code == 503)
    assert refused.json()["error"]["code"] == "upstream_unreachable"
    assert 1 <= int(refused.headers["retry-after"]) <= LONGEST_WAIT
    for copy in own_pair:
        copy.behave()
    eventually(lambda: post(own_gateway, body()).status_code == 200)
    # One probe a copy, and all is well again.
    eventually(lambda: all(copy.calls() for copy in own_pair) or post(own_gateway, body()) is None)
    assert {post(own_gateway, body()).status_code for _ in range(20)} == {200}


def test_a_dead_copy_costs_a_few_attempts_and_comes_back(
    own_gateway: GatewayProcess, control_plane: ControlPlane, own_pair: tuple[StandIn, StandIn]
) -> None:
    dead, alive = own_pair
    dead.kill()
    began = time.monotonic()
    for _ in range(60):
        assert post(own_gateway, body()).status_code == 200
    seconds = time.monotonic() - began
    eventually(lambda: len(control_plane.events()) >= 65)
    failed = Counter(event.error_code for event in control_plane.events() if event.endpoint == "copy-1")
    assert set(failed) == {"upstream_unreachable"}
    assert FAILURES_IN_A_ROW <= failed["upstream_unreachable"] <= most_failures(seconds)
    assert alive.calls() == 60
    dead.start()
    eventually(lambda: post(own_gateway, body()).status_code == 200 and dead.calls())


def test_a_canary_of_dead_copies_fails_nobody(
    own_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    """The canary has more dead copies than a request has attempts."""
    (alive,) = stand_ins(1)
    table = route_table(alive.url, *(f"http://127.0.0.1:{free_port()}" for _ in range(4)))
    canary = CanaryRoute("rollout-1", 99, ("copy-2", "copy-3", "copy-4", "copy-5"))
    route = replace(table.bases["base"], canary=canary)
    control_plane.publish(replace(table, bases={"base": route}))
    own_gateway.start()
    users = [user for user in map(str, range(12)) if passed_over(route, "acme", user) == ("copy-1",)][:5]
    assert [post(own_gateway, body(user=user)).status_code for user in users] == [200] * 5
    # Two new ones each, then the other; fewer failures than would open three breakers.
    tried = Counter(event.endpoint == "copy-1" for event in control_plane.wait_events(15))
    assert tried[True] == alive.calls() == 5


def test_retries_end_with_their_budget(own_gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    """Many dead copies: their breakers alone would let each request try three of them."""
    control_plane.publish(route_table(*(f"http://127.0.0.1:{free_port()}" for _ in range(60))))
    own_gateway.start()
    started = time.monotonic()
    for _ in range(100):
        assert post(own_gateway, body()).status_code == 503
    seconds = time.monotonic() - started
    # A stop ships every event.
    own_gateway.stop()
    events = control_plane.events()
    retries = sum(event.attempt > 1 for event in events)
    assert 20 <= retries <= 20 + 10 + 2 * seconds + 1


def test_a_draining_copy_gets_no_new_requests_and_finishes_its_streams(
    pooled_gateway: GatewayProcess, pair: tuple[StandIn, StandIn]
) -> None:
    draining, other = pair
    with ThreadPoolExecutor() as pool:
        streams: list[Future[httpx.Response]] = []
        while not draining.calls():
            slow = {"model": "base", "stream": True, "messages": ask(n=len(streams), tokens=40, delay=0.1)}
            streams.append(pool.submit(post, pooled_gateway, slow))
            eventually(lambda: sum(copy.calls() for copy in pair) == len(streams))
        draining.behave(load={"status": "draining", "pending": 1, "adapters": []})
        draining.wait_heard()
        for _ in range(20):
            assert post(pooled_gateway, body()).status_code == 200
        assert draining.calls() == 0
        assert all(stream.result().text.endswith("data: [DONE]\n\n") for stream in streams)
    other.behave(load={"status": "draining", "pending": 0, "adapters": []})
    other.wait_heard()
    refused = post(pooled_gateway, body())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    draining.behave(load={"status": "ok", "pending": 0, "adapters": []})
    eventually(lambda: post(pooled_gateway, body()).status_code == 200)


def test_an_adapter_is_called_where_it_lies_and_load_is_what_copies_report(
    pooled_gateway: GatewayProcess, pair: tuple[StandIn, StandIn]
) -> None:
    digest = reference("acme", "bot").sha256[:12]
    for holder, other in (pair, pair[::-1]):
        holder.behave(load={"status": "ok", "pending": 0, "adapters": [digest]})
        other.behave(load={"status": "ok", "pending": 0, "adapters": []})
        holder.wait_heard()
        other.wait_heard()
        for _ in range(10):
            post(pooled_gateway, body("bot"))
        assert (holder.calls(), other.calls()) == (10, 0)
        holder.behave(load={"status": "ok", "pending": 90, "adapters": [digest]})
        other.behave(load={"status": "ok", "pending": 0, "adapters": []})
        holder.wait_heard()
        other.wait_heard()
        for _ in range(10):
            post(pooled_gateway, body("bot"))
            post(pooled_gateway, body())
        assert (holder.calls(), other.calls()) == (0, 20)


def test_poll_answers_that_make_no_sense_are_ignored(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    loads: list[Any] = [
        [],
        {},
        {"status": "ok"},
        {"status": "ok", "pending": "x", "adapters": []},
        "text",
        {"status": "ok", "pending": None, "adapters": 5},
    ]
    copies = stand_ins(len(loads))
    for copy, load in zip(copies, loads, strict=True):
        copy.behave(load=load)
    control_plane.replace(pooled_gateway, route_table(*(copy.url for copy in copies), name=new_name()))
    for copy in copies:
        copy.wait_heard()
    # Each copy is still called.
    eventually(
        lambda: post(pooled_gateway, body()).status_code == 200 and all(copy.calls() for copy in copies)
    )
    assert httpx.get(pooled_gateway.url + "/readyz").status_code == 200


def table_with(*copies: StandIn, fallbacks: dict[str, tuple[str, ...]], spare: StandIn) -> RouteTable:
    """`bot` on base `base` at `copies`, a base `spare`, and a split of `bot@prod`."""
    table = route_table(*(copy.url for copy in copies), name=new_name())
    bot: AdapterRoute = table.adapters["acme"]["bot"]
    bot = replace(bot, splits={"prod": ((1, 50), (2, 50))}, fallbacks=fallbacks)
    copy = CopyRoute(new_name(), "worker", spare.url)
    bases = {**table.bases, "spare": BaseRoute("spare", 2048, (copy,))}
    return replace(table, bases=bases, adapters={**table.adapters, "acme": {"bot": bot}})


def test_a_fallback_answers_when_no_copy_can_and_only_where_it_is_set(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    own, spare = stand_ins(2)
    fallbacks = {"prod": ("bot@v9", "base", "spare"), "": ("spare",)}
    table = table_with(own, fallbacks=fallbacks, spare=spare)
    (own_copy,), (spare_copy,) = table.bases["base"].copies, table.bases["spare"].copies
    control_plane.replace(pooled_gateway, table)
    answer = post(pooled_gateway, body("bot"))
    assert answer.headers["x-graftwork-served-model"] == "bot@v1"
    own.behave(status=503, retry_after="2", code="unavailable")
    for model in ("bot", "bot@prod"):
        answer = post(pooled_gateway, body(model))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-graftwork-served-model"] == "spare"
        assert "x-graftwork-adapter" not in answer.headers
        assert answer.json()["model"] == model, "the body's name is the client's own"
    refused = post(pooled_gateway, body("bot@v2"))
    assert refused.status_code == 503, "a fixed version is that version or nothing"
    events = control_plane.wait_events(4)
    served = [
        (event.requested_model, event.alias, event.arm, event.adapter, event.base_model, event.endpoint)
        for event in events
        if event.status == "ok"
    ]
    assert served == [
        ("bot", "", "", reference("acme", "bot", 1).name, "base", own_copy.id),
        ("bot", "", "fallback", "", "spare", spare_copy.id),
        ("bot@prod", "prod", "fallback", "", "spare", spare_copy.id),
    ]
    [failed] = [event for event in events if event.status == "error"]
    assert (failed.attempt, failed.adapter) == (1, reference("acme", "bot", 1).name)
    own.behave()
    eventually(lambda: served_by(pooled_gateway, "bot") == "bot@v1")


def served_by(gateway: GatewayProcess, model: str, **rest: Any) -> str:
    answer = post(gateway, body(model, **rest))
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-graftwork-served-model"])


def test_callers_stay_on_their_arm_and_usage_tells_it(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    own, spare = stand_ins(2)
    control_plane.replace(pooled_gateway, table_with(own, fallbacks={}, spare=spare))

    served = partial(served_by, pooled_gateway, "bot@prod")
    arms = {user: served(user=user) for user in map(str, range(16))}
    assert set(arms.values()) == {"bot@v1", "bot@v2"}
    for user, arm in arms.items():
        assert served(user=user) == arm
        assert served(safety_identifier=user, stream=True) == arm
        # The header says more than the body.
        headers = {"x-graftwork-sticky": user}
        answer = post(pooled_gateway, body("bot@prod", user="somebody"), ACME, **headers)
        assert answer.headers["x-graftwork-served-model"] == arm
    assert {served() for _ in range(30)} == {"bot@v1", "bot@v2"}
    events = control_plane.wait_events(16 * 4 + 30)
    assert {(event.alias, event.arm, event.adapter) for event in events} == {
        ("prod", f"v{number}", reference("acme", "bot", number).name) for number in (1, 2)
    }
