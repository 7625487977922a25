"""Calls that name an adapter for each prompt, over HTTP: one answer, and a bill for each adapter."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyScope
from contracts.limits import Limit, LimitsRoute, RateRoute
from contracts.route_table import AdapterRoute, RouteTable
from contracts.usage_event import UsageEvent, part_id
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.test_app import client, post
from tests.waiting import eventually

NAMES = ["bot@prod", "base", "bot@v1"]
SERVED = ["bot@v2", "base", "bot@v1"]
ENGINES = [reference("acme", "bot", 2).name, "", reference("acme", "bot", 1).name]
PLANS: list[dict[str, Any]] = [
    {"tokens": 2, "prompt_tokens": 10},
    {"tokens": 3, "prompt_tokens": 20},
    {"tokens": 5, "prompt_tokens": 41},
]
COUNTS = [(10, 5, 2), (20, 10, 3), (41, 20, 5)]
"""Prompt, cached and completion tokens of each plan."""


def call(*plans: dict[str, Any], adapters: list[str] | None = None, **body: Any) -> dict[str, Any]:
    """Body of a call whose prompts control the canned backend."""
    prompts = [json.dumps(plan) for plan in plans or PLANS]
    names = NAMES[: len(prompts)] if adapters is None else adapters
    return {"model": "base", "prompt": prompts, "adapters": names, **body}


def complete(gateway: GatewayProcess, body: dict[str, Any], **headers: str) -> httpx.Response:
    return post(gateway, body, path="completions", **headers)


def chunks_of(text: str) -> list[Any]:
    """The events of a stream that ends with one `[DONE]`."""
    *lines, done = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert done == "[DONE]"
    return [json.loads(line) for line in lines]


def by_part(control_plane: ControlPlane, request_id: str, count: int) -> list[UsageEvent]:
    """The call's usage events, in the order of its prompts."""
    events = {event.request_id: event for event in control_plane.wait_events(count)}
    assert events.keys() == {part_id(request_id, index) for index in range(count)}
    return [events[part_id(request_id, index)] for index in range(count)]


def sent_upstream(upstream: str, request_id: str) -> list[Any]:
    """The canned backend's log of a call, in the order of its prompts."""
    found = [
        item for item in httpx.get(upstream + "/log").json() if (item["id"] or "").startswith(request_id)
    ]
    return sorted(found, key=lambda item: int(item["id"].rpartition("-")[2]))


def test_each_prompt_is_answered_and_billed_by_its_adapter(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    answer = complete(gateway, call(max_tokens=9))
    assert answer.status_code == 200
    body, request_id = answer.json(), answer.headers["x-request-id"]
    texts = ["".join(f"tok{at} " for at in range(plan["tokens"])) for plan in PLANS]
    assert [(c["index"], c["text"], c["model"]) for c in body["choices"]] == [
        (index, text, model) for index, (text, model) in enumerate(zip(texts, SERVED, strict=True))
    ]
    assert body["usage"] == {
        "prompt_tokens": 71,
        "completion_tokens": 10,
        "total_tokens": 81,
        "prompt_tokens_details": {"cached_tokens": 35},
    }
    assert (body["id"], body["object"], body["model"]) == (f"cmpl-{request_id}", "text_completion", "base")
    events = by_part(control_plane, request_id, 3)
    assert [(e.prompt_tokens, e.cached_tokens, e.completion_tokens) for e in events] == COUNTS
    assert [event.adapter for event in events] == ENGINES
    assert [(e.requested_model, e.alias) for e in events] == [
        ("bot@prod", "prod"),
        ("base", ""),
        ("bot@v1", ""),
    ]
    assert {(e.status, e.estimated, e.base_model, e.key_id) for e in events} == {("ok", False, "base", "k1")}
    sent = [item["body"] for item in sent_upstream(upstream, request_id)]
    assert [item["model"] for item in sent] == [engine or "base" for engine in ENGINES]
    assert [item["prompt"] for item in sent] == [json.dumps(plan) for plan in PLANS]
    assert all("adapters" not in item and item["max_tokens"] == 9 for item in sent)


@pytest.mark.parametrize("delay", [0, 0.002])
def test_a_stream_interleaves_the_prompts(
    gateway: GatewayProcess, control_plane: ControlPlane, delay: float
) -> None:
    plans = [plan | {"tokens": 2 * plan["tokens"], "delay": delay} for plan in PLANS]
    answer = complete(gateway, call(*plans, n=2, stream=True, stream_options={"include_usage": True}))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    request_id = answer.headers["x-request-id"]
    *chunks, last = chunks_of(answer.text)
    texts: dict[int, str] = {}
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        assert choice["model"] == SERVED[choice["index"] // 2]
    assert texts == {
        2 * prompt + k: "".join(f"tok{at} " for at in range(k, plan["tokens"], 2))
        for prompt, plan in enumerate(plans)
        for k in (0, 1)
    }
    assert {(chunk["id"], chunk["model"], chunk["usage"]) for chunk in chunks} == {
        (f"cmpl-{request_id}", "base", None)
    }
    assert (last["choices"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (
        [],
        71,
        20,
    )
    events = by_part(control_plane, request_id, 3)
    assert [(e.status, e.completion_tokens, e.adapter) for e in events] == [
        ("ok", plan["tokens"], engine) for plan, engine in zip(plans, ENGINES, strict=True)
    ]


def test_the_official_client_sends_it_by_extra_body(gateway: GatewayProcess) -> None:
    body = call()
    extra = {"adapters": body["adapters"]}
    with client(gateway) as api:
        answer = api.completions.create(model="bot", prompt=body["prompt"], extra_body=extra)
        stream = list(
            api.completions.create(model="bot", prompt=body["prompt"], extra_body=extra, stream=True)
        )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    assert answer.model == "bot"
    assert {choice.index for chunk in stream for choice in chunk.choices} == {0, 1, 2}
    assert all(chunk.usage is None for chunk in stream)


def test_a_failed_prompt_is_named_and_the_others_are_cancelled(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    slow = {"tokens": 500, "delay": 0.05}
    answer = complete(gateway, call(slow, {"tokens": 1, "fail": 422}, slow))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "canned", "prompt[1]")
    assert error["message"] == "prompt[1]: canned failure"
    request_id = answer.headers["x-request-id"]
    events = by_part(control_plane, request_id, 3)
    assert [(e.status, e.error_code) for e in events] == [
        ("cancelled", "other_prompt_failed"),
        ("client_error", "canned"),
        ("cancelled", "other_prompt_failed"),
    ]
    assert {(e.prompt_tokens, e.completion_tokens) for e in events} == {(0, 0)}, "the client got no answer"
    eventually(lambda: all(item["closed"] for item in sent_upstream(upstream, request_id)))


def test_an_answered_prompt_is_not_billed_if_another_fails(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    late = {"tokens": 20, "delay": 0.02, "fail": "event", "code": "generation_failed"}
    answer = complete(gateway, call({"tokens": 1}, late))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
    answered, failed = by_part(control_plane, answer.headers["x-request-id"], 2)
    assert sent_upstream(upstream, answered.request_id)[0]["sent"] == 1
    assert (answered.status, answered.error_code) == ("cancelled", "other_prompt_failed")
    assert (failed.status, failed.error_code) == ("error", "upstream_error")
    assert (answered.prompt_tokens, answered.completion_tokens, failed.completion_tokens) == (0, 0, 0)


def test_a_stream_ends_with_the_failed_prompts_error(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    late = {"tokens": 6, "delay": 0.01, "fail": "event", "code": "generation_failed"}
    answer = complete(gateway, call({"tokens": 1}, late, {"tokens": 500, "delay": 0.05}, stream=True))
    *chunks, last = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    error = json.loads(last)["error"]
    assert (error["code"], error["param"]) == ("upstream_error", "prompt[1]")
    assert all(json.loads(chunk)["choices"] for chunk in chunks)
    request_id = answer.headers["x-request-id"]
    first, failed, other = by_part(control_plane, request_id, 3)
    assert (first.status, first.completion_tokens) == ("ok", 1)
    assert (failed.status, failed.completion_tokens) == ("error", 3)
    assert (other.status, other.error_code) == ("cancelled", "other_prompt_failed")
    assert other.completion_tokens >= 1, "what the client was sent is billed"
    eventually(lambda: sent_upstream(upstream, part_id(request_id, 2))[0]["closed"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_cancels_every_prompt(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, stream: bool
) -> None:
    body = call(*[{"tokens": 500, "delay": 0.05}] * 3, stream=stream)
    headers = {"authorization": f"Bearer {ACME}"}
    httpx.get(upstream + "/busy")
    url = gateway.url + "/v1/completions"
    if stream:
        with httpx.stream("POST", url, json=body, headers=headers) as answer:
            seen: set[int] = set()
            for line in answer.iter_lines():
                seen |= {c["index"] for c in json.loads(line[6:])["choices"]} if line else set()
                if len(seen) == 3:
                    break
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, headers=headers, timeout=httpx.Timeout(30, read=0.5))
    events = control_plane.wait_events(3)
    assert {(event.status, event.error_code) for event in events} == {("cancelled", "")}
    assert all(1 <= event.completion_tokens < 500 and event.prompt_tokens == 11 for event in events)
    ids = [event.request_id for event in events]
    eventually(lambda: all(sent_upstream(upstream, name)[0]["closed"] for name in ids))


def other_base(upstream: str) -> RouteTable:
    """Acme has an adapter of another base model, and a second key that may call `bot` alone."""
    table = route_table(upstream)
    other = BaseRoute("other", 2048, (CopyRoute("copy-o", "worker", upstream),))
    cat = AdapterRoute("other", 1, {1: reference("acme", "cat")})
    keys = {**table.keys, "k2": replace(table.keys["k2"], tenant="acme", scope=KeyScope(models=("bot",)))}
    adapters = {**table.adapters, "acme": {**table.adapters["acme"], "cat": cat}}
    return replace(table, keys=keys, bases={**table.bases, "other": other}, adapters=adapters)


@pytest.mark.parametrize(
    ("names", "status", "code", "message"),
    [
        (["bot", "nobody"], 404, "model_not_found", "adapters[1]: The model 'nobody' does not exist"),
        (["bot", "hive"], 404, "model_not_found", "adapters[1]: The model 'hive' does not exist"),
        (["bot", "bot@v9"], 404, "model_not_found", "adapters[1]: The model 'bot@v9' does not exist"),
        (["bot", "cat"], 400, "invalid_value", "adapters[1] is of the base model 'other'"),
    ],
)
def test_every_adapter_must_be_the_tenants_and_of_one_base_model(
    gateway: GatewayProcess,
    control_plane: ControlPlane,
    upstream: str,
    names: list[str],
    status: int,
    code: str,
    message: str,
) -> None:
    control_plane.replace(gateway, other_base(upstream))
    answer = complete(gateway, call({}, {}, adapters=names))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, "adapters[1]")
    assert error["message"].startswith(message)
    assert sent_upstream(upstream, answer.headers["x-request-id"]) == []


def test_a_key_reaches_only_its_models(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.replace(gateway, other_base(upstream))
    key = "gw_k2_secret2"
    body = call({"tokens": 1}, {"tokens": 1}, model="bot", adapters=["bot", "bot@prod"])
    assert post(gateway, body, key, path="completions").status_code == 200
    refused = post(gateway, body | {"adapters": ["bot", "base"]}, key, path="completions")
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "adapters[1]")


def test_other_endpoints_refuse_adapters(gateway: GatewayProcess) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "embeddings": {"input": ["x"]},
        "responses": {"input": "x"},
    }
    for path, body in bodies.items():
        answer = post(gateway, {"model": "base", "adapters": ["bot"], **body}, path=path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "adapters")
        assert "only at /v1/completions" in error["message"]


RATES = {"base": RateRoute(10, 1, 20, request_nano=1000)}
TWO = [{"tokens": 4}, {"tokens": 4}]


@pytest.mark.parametrize(
    ("limit", "code", "message"),
    [
        (Limit("requests", 1), "rate_limit_exceeded", "requested 2. Send fewer prompts"),
        (Limit("tokens", 150), "rate_limit_exceeded", "limit 150 tokens per minute, requested 2"),
        (Limit("concurrency", 1), "rate_limit_exceeded", "Send at most 1 prompts in a call"),
        (Limit("budget", 3000), "insufficient_quota", "less than this request"),
    ],
)
def test_limits_hold_for_the_sum(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, limit: Limit, code: str, message: str
) -> None:
    """Each prompt alone has room: about 100 tokens of 2,000 nano-units and 1,000 for the request."""
    limits = {"tenant:acme": LimitsRoute((limit,))}
    control_plane.replace(gateway, replace(route_table(upstream), limits=limits, rates=RATES))
    answer = complete(gateway, call(*TWO, max_tokens=97))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (429, code)
    assert message in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert sent_upstream(upstream, answer.headers["x-request-id"]) == []


def test_what_was_reserved_is_settled_for_each_prompt(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    limits = {
        "model:acme/bot": LimitsRoute((Limit("tokens", 1000), Limit("concurrency", 2))),
        "key:k1": LimitsRoute((Limit("requests", 100),)),
    }
    control_plane.replace(gateway, replace(route_table(upstream), limits=limits, rates=RATES))
    body = call(*TWO, adapters=["bot", "bot@prod"], max_tokens=400)
    # A server that was emptied grants nothing for a moment.
    eventually(lambda: complete(gateway, body).status_code == 200)
    # Reserved about 810, used 30: without settling a second call would find no room.
    answer = complete(gateway, body)
    assert answer.status_code == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 200, "the headers count both prompts"
    assert int(answer.headers["x-ratelimit-remaining-requests"]) <= 96


@pytest.mark.parametrize("stream", [True, False])
def test_an_idempotency_key_covers_the_whole_call(
    gateway: GatewayProcess, control_plane: ControlPlane, stream: bool
) -> None:
    body, key = call(stream=stream), f"call-{stream}"
    first, second = (complete(gateway, body, **{"idempotency-key": key}) for _ in range(2))
    assert (second.headers["idempotent-replayed"], second.content) == ("true", first.content)
    by_part(control_plane, first.headers["x-request-id"], 3)
    failing = call({"tokens": 1}, {"fail": 422})
    for _ in range(2):
        refused = complete(gateway, failing, **{"idempotency-key": key + "-failing"})
        assert "idempotent-replayed" not in refused.headers, "a failed call frees its key"


def test_calls_of_a_tenant_do_not_block_each_other(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    """Without turns a call could hold places that another call waits for, and both would be refused."""
    limits = {"tenant:acme": LimitsRoute((Limit("concurrency", 4),))}
    control_plane.replace(gateway, replace(route_table(upstream), limits=limits))
    eventually(lambda: complete(gateway, call(*TWO)).status_code == 200)
    httpx.get(upstream + "/busy")
    body = call(*[{"tokens": 20, "delay": 0.005}] * 3)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: complete(gateway, body), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert httpx.get(upstream + "/busy").json()["most"] <= 4
