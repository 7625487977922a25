"""An adapter goes only to copies that serve its traits and rank; where none does, the answer says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from contracts.base_routes import AdapterHomes, BaseRoute, CanaryRoute, CopyRoute
from contracts.demand import demand_key
from contracts.route_table import AdapterRoute, RouteChange, RouteTable
from gateway.errors import AdapterNotServed, render
from gateway.routing import resolve
from gateway.routing.not_served import not_served
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.routing.conftest import server_thread, stand_ins
from tests.gateway.routing.standin import StandIn
from tests.gateway.routing.test_waiting_room import wait_held
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

__all__ = ["server_thread", "stand_ins"]
BOT = replace(reference("acme", "bot", 1), traits=("dora",))
PLAIN = reference("acme", "bot", 2)
WORKER = CopyRoute("worker", "worker", "http://w", engine="the bundled worker", traits=("bias", "dora"))
VLLM = CopyRoute("vllm", "worker", "http://v", engine="vLLM 0.32.0", traits=("experts",), max_rank=16)


def table_of(*copies: CopyRoute, fallbacks: tuple[str, ...] = (), **base: Any) -> RouteTable:
    """A table in which version 1 of acme's bot needs DoRA, and version 2 nothing."""
    bot = AdapterRoute("base", 1, {1: BOT, 2: PLAIN}, {"prod": 2}, fallbacks={"": fallbacks})
    route = BaseRoute("base", 2048, copies, architecture="Qwen3ForCausalLM", **base)
    table = route_table()
    return replace(table, bases={"base": route}, adapters={**table.adapters, "acme": {"bot": bot}})


def test_capabilities_survive_the_wire() -> None:
    table = table_of(WORKER, VLLM, CopyRoute("x", "worker", ""), absent=(VLLM,), quantization="awq")
    assert RouteTable.from_snapshot(table.snapshot()) == table
    change = RouteChange(2, "adapters/acme/bot", table.adapters["acme"]["bot"])
    assert RouteChange.from_json(change.to_json()) == change


def test_older_gateways_and_workers_read_the_references() -> None:
    """They refuse unknown fields of a reference, and ignore those of a route."""
    entry = json.loads(RouteChange(2, "adapters/acme/bot", table_of().adapters["acme"]["bot"]).to_json())[
        "entry"
    ]
    fields = {"name", "uri", "sha256", "rank"}
    assert {frozenset(ref) for ref in entry["versions"].values()} == {frozenset(fields)}
    assert entry["traits"] == {"1": ["dora"]}
    assert set(BOT.to_dict()) == fields


@pytest.mark.parametrize(
    ("rank", "traits", "copies"),
    [
        (8, (), {"worker", "vllm", "unknown"}),
        (64, (), {"worker", "unknown"}),
        (8, ("dora",), {"worker", "unknown"}),
        (8, ("experts",), {"vllm", "unknown"}),
        (8, ("dora", "experts"), {"unknown"}),
        (8, ("of-a-newer-release",), {"unknown"}),
    ],
)
def test_copies_for_an_adapter(rank: int, traits: tuple[str, ...], copies: set[str]) -> None:
    route = BaseRoute("base", 2048, (WORKER, VLLM, CopyRoute("unknown", "worker", "http://u")))
    adapter = replace(BOT, rank=rank, traits=traits)
    assert {copy.id for copy in route.copies_for(adapter)} == copies
    assert len(route.copies_for(None)) == 3
    assert not route.excludes(adapter)


def test_a_copy_without_adapters_serves_none_whatever_their_rank() -> None:
    """Older control planes publish adapters with rank 0."""
    without = replace(VLLM, max_rank=0, traits=())
    assert without.lacks(replace(BOT, rank=0, traits=())) == "adapters"
    assert not without.can_serve(replace(BOT, rank=0, traits=()))
    assert replace(VLLM, max_rank=16).can_serve(replace(BOT, rank=0, traits=()))


def test_a_merged_copy_serves_its_adapter_whatever_it_needs() -> None:
    merged = replace(VLLM, id="merged", merged=BOT.name)
    route = BaseRoute("base", 2048, (VLLM, merged))
    assert route.copies_for(BOT) == (merged,)
    assert not route.excludes(BOT)
    assert route.excludes(replace(BOT, name="another"))


def test_the_error_names_what_is_missing_and_what_would_serve_it() -> None:
    found = resolve(
        table_of(VLLM, replace(VLLM, id="second"), absent=(replace(VLLM, engine=""),)), "acme", "bot"
    )
    assert found.is_excluded
    error = not_served(found)
    assert error.message == (
        "No copy of 'base' can serve 'bot@v1': vLLM 0.32.0 does not serve DoRA; a copy does not serve DoRA. "
        "What would serve it: the bundled worker. Ask your operator for such a copy."
    )
    status, body, headers = render(error)
    assert (status, headers) == (400, {})
    shown = json.loads(body)["error"]
    assert (shown["code"], shown["param"], shown["type"]) == (
        "adapter_not_served",
        "model",
        "invalid_request_error",
    )


def test_the_error_of_a_trait_that_is_not_known_here() -> None:
    table = table_of(VLLM)
    bot = replace(table.adapters["acme"]["bot"], versions={1: replace(BOT, traits=("of-2027",))})
    found = resolve(replace(table, adapters={"acme": {"bot": bot}}), "acme", "bot")
    assert "vLLM 0.32.0 does not serve of-2027. Use another version" in not_served(found).message


def test_the_base_has_no_such_error() -> None:
    assert not resolve(table_of(VLLM), "acme", "base").is_excluded
    with pytest.raises(ValueError, match="base model"):
        not_served(resolve(table_of(VLLM), "acme", "base"))


def test_a_base_without_any_copy_excludes_nothing() -> None:
    """The answer is then that nothing is deployed."""
    assert not BaseRoute("base", 2048).excludes(BOT)
    assert not BaseRoute("base", 2048, absent=(WORKER,)).excludes(BOT)
    assert BaseRoute("base", 2048, absent=(VLLM,)).excludes(BOT)


@pytest.mark.costly("requests over two copies, one of which goes down")
def test_the_adapter_goes_to_the_copy_that_can_also_when_that_is_down(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    capable, other = stand_ins(2)
    number = str(id(capable))
    copies = (
        replace(WORKER, id=f"w-{number}", url=capable.url),
        replace(VLLM, id=f"v-{number}", url=other.url),
    )
    # Placed on the copy that cannot, which a canary gives every caller: neither overrides what it lacks.
    homes = {BOT.name: AdapterHomes(at=(f"v-{number}",), away=(f"w-{number}",))}
    canary = CanaryRoute("roll", 99, (f"v-{number}",))
    control_plane.replace(pooled_gateway, table_of(*copies, homes=homes, canary=canary))

    def call(model: str) -> Any:
        return post(pooled_gateway, {"model": model, "messages": ask(tokens=2)})

    assert [call("bot").status_code for _ in range(12)] == [200] * 12
    assert (capable.calls(), other.calls()) == (12, 0)
    assert [call("bot@v2").status_code for _ in range(8)] == [200] * 8
    assert other.calls() > 0
    before = other.calls()
    capable.behave(status=503, retry_after="1", code="unavailable")
    failed = call("bot")
    assert (failed.status_code, other.calls()) == (503, before)
    assert call("bot@v2").status_code == 200, "the plain version goes on elsewhere"
    events = control_plane.wait_events(22)
    assert {event.endpoint for event in events if event.adapter == BOT.name} == {f"w-{number}"}
    before = other.calls()
    capable.kill()
    failed = [call("bot") for _ in range(4)]
    assert {answer.status_code for answer in failed} == {503}
    assert all("retry-after" in answer.headers for answer in failed)
    assert other.calls() == before
    capable.start()


@pytest.mark.costly("requests to a gateway process")
def test_without_a_capable_copy_the_answer_is_at_once_and_costs_nothing(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    [other] = stand_ins(1)
    copy = replace(VLLM, id=f"v-{id(other)}", url=other.url)
    control_plane.replace(
        pooled_gateway, table_of(copy, hold_seconds=30, absent=(replace(VLLM, id="asleep"),))
    )
    for body in (
        {"model": "bot", "messages": ask(tokens=2)},
        {"model": "bot@v1", "messages": ask(tokens=2), "stream": True},
    ):
        answer = post(pooled_gateway, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, AdapterNotServed.code), (
            answer.text
        )
    prompts = {"model": "bot@v2", "prompt": ["a", "b"], "adapters": ["bot@v2", "bot@v1"], "max_tokens": 1}
    error = post(pooled_gateway, prompts, path="completions").json()["error"]
    assert (error["code"], error["param"]) == (AdapterNotServed.code, "adapters[1]")
    assert other.calls() == 0
    fine = post(pooled_gateway, {"model": "base", "messages": ask(tokens=2)})
    assert fine.status_code == 200
    [event] = control_plane.wait_events(1)
    assert (event.adapter, event.request_id) == ("", fine.headers["x-request-id"])


@pytest.mark.costly("requests to a gateway process")
def test_a_fallback_serves_instead(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    [other] = stand_ins(1)
    copy = replace(VLLM, id=f"v-{id(other)}", url=other.url)
    control_plane.replace(pooled_gateway, table_of(copy, fallbacks=("bot@v2",)))
    answer = post(pooled_gateway, {"model": "bot", "messages": ask(tokens=2)})
    assert answer.headers["x-graftwork-served-model"] == "bot@v2"


@pytest.mark.costly("requests to a gateway process")
def test_an_excluded_model_waits_for_nothing_where_a_fallback_can_answer(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    """Nor does it report demand for a base model whose copies could not serve it."""
    [other] = stand_ins(1)
    table = table_of(fallbacks=("other",), hold_seconds=30, absent=(replace(VLLM, id="asleep"),))
    here = BaseRoute("other", 2048, (replace(VLLM, id=f"v-{id(other)}", url=other.url),))
    control_plane.replace(pooled_gateway, replace(table, bases={**table.bases, "other": here}))
    answer = post(pooled_gateway, {"model": "bot", "messages": ask(tokens=2)})
    assert answer.headers["x-graftwork-served-model"] == "other"
    assert control_plane.client.hgetall(demand_key("base")) == {}


@pytest.mark.costly("a request that is held by a gateway process")
def test_an_excluded_model_waits_for_its_fallbacks_copy(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    [other] = stand_ins(1)
    table = table_of(replace(VLLM, url=other.url), fallbacks=("other",), hold_seconds=30)
    asleep = BaseRoute("other", 2048, hold_seconds=30)
    version = control_plane.replace(pooled_gateway, replace(table, bases={**table.bases, "other": asleep}))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(post, pooled_gateway, {"model": "bot", "messages": ask(tokens=2)})
        eventually(lambda: control_plane.client.hgetall(demand_key("other")))
        awake = replace(asleep, copies=(replace(VLLM, id=f"v-{id(other)}", url=other.url),))
        control_plane.change(version + 1, "bases/other", awake)
        assert held.result(60).headers["x-graftwork-served-model"] == "other"
    assert control_plane.client.hgetall(demand_key("base")) == {}


@pytest.mark.costly("a request that is held by a gateway process")
def test_a_call_waits_for_the_copy_of_each_of_its_adapters(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    capable, other = stand_ins(2)
    here = replace(VLLM, id=f"v-{id(other)}", url=other.url)
    table = table_of(here, hold_seconds=30, absent=(replace(WORKER, id="asleep"),))
    version = control_plane.replace(pooled_gateway, table)
    prompts = {"model": "bot@v2", "prompt": ["a", "b"], "adapters": ["bot@v2", "bot@v1"], "max_tokens": 1}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(post, pooled_gateway, prompts, path="completions")
        wait_held(control_plane)
        awake = replace(WORKER, id=f"w-{id(capable)}", url=capable.url)
        route = replace(table.bases["base"], copies=(here, awake), absent=())
        control_plane.change(version + 1, "bases/base", route)
        assert held.result(60).status_code == 200
    events = {event.adapter: event.endpoint for event in control_plane.wait_events(2)}
    assert events[BOT.name] == awake.id


@pytest.mark.costly("a request that is held by a gateway process")
def test_a_request_waits_for_the_deployment_that_can(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, stand_ins: Callable[[int], list[StandIn]]
) -> None:
    capable, other = stand_ins(2)
    here = replace(VLLM, id=f"v-{id(other)}", url=other.url)
    table = table_of(here, hold_seconds=30, absent=(replace(WORKER, id="asleep"),))
    version = control_plane.replace(pooled_gateway, table)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(post, pooled_gateway, {"model": "bot", "messages": ask(tokens=2)})
        wait_held(control_plane)
        awake = replace(WORKER, id=f"w-{id(capable)}", url=capable.url)
        route = replace(table.bases["base"], copies=(here, awake), absent=())
        control_plane.change(version + 1, "bases/base", route)
        assert held.result(60).status_code == 200
    assert (capable.calls(), other.calls()) == (1, 0)
