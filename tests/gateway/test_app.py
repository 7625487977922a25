"""The gateway over HTTP as a client meets it: real processes, the official client."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from contracts.limits import LimitsRoute
from tests.conftest import ROOT
from tests.gateway.conftest import ACME, UMBRELLA, ControlPlane, GatewayProcess, reference, route_table
from tests.waiting import eventually

Message = ChatCompletionUserMessageParam


def ask(**plan: Any) -> list[Message]:
    """A message that controls the canned backend."""
    return [{"role": "user", "content": json.dumps(plan)}]


def client(gateway: GatewayProcess, key: str = ACME) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0)


def post(
    gateway: GatewayProcess,
    body: dict[str, Any],
    key: str = ACME,
    *,
    path: str = "chat/completions",
    **headers: str,
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", **headers}
    return httpx.post(f"{gateway.url}/v1/{path}", json=body, headers=headers)


def test_an_answer_and_its_usage(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    with client(gateway) as api:
        raw = api.chat.completions.with_raw_response.create(model="bot@prod", messages=ask(tokens=5))
    answer = raw.parse()
    assert answer.choices[0].message.content == "tok0 tok1 tok2 tok3 tok4 "
    assert answer.model == "bot@prod"
    assert answer.usage is not None
    assert raw.headers["x-graftwork-adapter"] == reference("acme", "bot", 2).name
    [event] = control_plane.wait_events(1)
    assert event.request_id == raw.headers["x-request-id"]
    assert (event.tenant, event.project, event.key_id) == ("acme", "p1", "k1")
    assert (event.requested_model, event.alias) == ("bot@prod", "prod")
    assert event.adapter == reference("acme", "bot", 2).name
    assert (event.base_model, event.backend, event.endpoint) == ("base", "worker", "copy-1")
    assert (event.status, event.error_code, event.estimated, event.attempt) == ("ok", "", False, 1)
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (11, 5, 5)
    assert answer.usage.completion_tokens == 5


def test_a_stream_shows_no_usage_unless_asked(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    with client(gateway) as api:
        stream = api.chat.completions.create(model="bot", messages=ask(tokens=7, delay=0.001), stream=True)
        chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).split() == [
        f"tok{number}" for number in range(7)
    ]
    [event] = control_plane.wait_events(1)
    assert (event.status, event.completion_tokens) == ("ok", 7)
    assert event.ttft_ms is not None
    assert event.ttft_ms <= event.duration_ms
    assert event.itl_ms is not None
    assert 0 < 6 * event.itl_ms <= event.duration_ms - event.ttft_ms + 0.01


def test_a_stream_with_usage(gateway: GatewayProcess) -> None:
    with client(gateway) as api:
        chunks = list(
            api.chat.completions.create(
                model="base", messages=ask(tokens=7), stream=True, stream_options={"include_usage": True}
            )
        )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_choices_are_billed_together(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    """Two choices stream as one: the usage is the backend's sum, whichever view the client takes."""
    with client(gateway) as api:
        for delay in (0, 0.001):
            plan = ask(tokens=10, delay=delay)
            for options in ({}, {"stream_options": {"include_usage": True}}):
                chunks = list(
                    api.chat.completions.create(model="bot", messages=plan, n=2, stream=True, **options)  # type: ignore[call-overload]
                )
                seen = [(c.index, c.finish_reason) for chunk in chunks for c in chunk.choices]
                assert seen[-2:] == [(0, "length"), (1, "length")]
                assert [index for index, _ in seen] == [0, 1] * 5
                if options:
                    assert chunks[-1].usage.completion_tokens == 10
    events = control_plane.wait_events(4)
    assert {(e.status, e.prompt_tokens, e.completion_tokens, e.estimated) for e in events} == {
        ("ok", 11, 10, False)
    }


def test_completions(gateway: GatewayProcess) -> None:
    with client(gateway) as api:
        answer = api.completions.create(model="bot@v1", prompt=json.dumps({"tokens": 2}))
        chunks = list(api.completions.create(model="bot", prompt=json.dumps({"tokens": 2}), stream=True))
    assert answer.choices[0].text == "tok0 tok1 "
    assert "".join(chunk.choices[0].text for chunk in chunks) == "tok0 tok1 "


def test_the_worker_gets_the_whole_adapter_and_nothing_of_the_clients(
    gateway: GatewayProcess, upstream: str
) -> None:
    body = {"model": "bot@prod", "messages": ask(tokens=1), "user": "someone", "temperature": 0.5}
    answer = post(gateway, body, **{"x-request-id": "mine"})
    assert answer.headers["x-request-id"] != "mine"
    [seen] = [
        item for item in httpx.get(upstream + "/log").json() if item["id"] == answer.headers["x-request-id"]
    ]
    expected = reference("acme", "bot", 2)
    assert seen["body"] == {
        "model": expected.name,
        "adapter": expected.to_dict(),
        "messages": body["messages"],
        "temperature": 0.5,
        "tenant": "acme",
        "cache_salt": "aa11",
        # Also of an answer that the client wants whole: what is used is known when it hangs up.
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_bad_key(gateway: GatewayProcess) -> None:
    with client(gateway, "gw_k1_wrong") as api, pytest.raises(openai.AuthenticationError) as caught:
        api.chat.completions.create(model="bot", messages=ask())
    assert caught.value.code == "invalid_api_key"
    assert httpx.get(gateway.url + "/v1/models").status_code == 401


@pytest.mark.parametrize("model", ["nothing", "hive", "hive@v1"])
def test_unknown_and_another_tenants_model(gateway: GatewayProcess, model: str) -> None:
    with client(gateway) as api, pytest.raises(openai.NotFoundError) as caught:
        api.chat.completions.create(model=model, messages=ask())
    assert caught.value.code == "model_not_found"
    assert "base, bot, bot@prod" in caught.value.message


def test_models(gateway: GatewayProcess) -> None:
    with client(gateway) as api:
        assert [model.id for model in api.models.list()] == ["base", "bot", "bot@prod"]
        assert api.models.retrieve("bot@v1").id == "bot@v1"
        with pytest.raises(openai.NotFoundError):
            api.models.retrieve("hive")
    with client(gateway, UMBRELLA) as api:
        assert [model.id for model in api.models.list()] == ["base", "hive"]


def test_models_have_their_creation_time(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    """An older control plane's entries have none: `hive` is of one."""
    table = route_table(upstream)
    bot = replace(
        table.adapters["acme"]["bot"], created=1_700_000_001, aliases_created={"prod": 1_700_000_002}
    )
    base = replace(table.bases["base"], created=1_700_000_000)
    adapters = {**table.adapters, "acme": {"bot": bot}}
    control_plane.replace(gateway, replace(table, bases={"base": base}, adapters=adapters))
    expected = {"base": 1_700_000_000, "bot": 1_700_000_001, "bot@prod": 1_700_000_002}
    with client(gateway) as api:
        assert {model.id: model.created for model in api.models.list()} == expected
        for name, created in {**expected, "bot@v2": 1_700_000_001}.items():
            assert api.models.retrieve(name).created == created
    with client(gateway, UMBRELLA) as api:
        assert api.models.retrieve("hive").created == 0


def test_an_unknown_parameter(gateway: GatewayProcess) -> None:
    answer = post(gateway, {"model": "bot", "messages": ask(), "cache_salt": "00"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_salt"


def test_parameters_that_the_operator_has_dropped_do_not_reach_the_backend(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    """The endpoints drop served and unknown parameters alike, for adapters and base models."""
    table = route_table(upstream)
    base = replace(table.bases["base"], dropped_parameters=("thinking", "seed"))
    control_plane.replace(gateway, replace(table, bases={"base": base}))
    for path, prompt in (
        ("chat/completions", {"messages": ask(tokens=1)}),
        ("completions", {"prompt": json.dumps({"tokens": 1})}),
        ("responses", {"input": json.dumps({"tokens": 1})}),
    ):
        for model in ("bot@prod", "base"):
            extra = {"thinking": True, "seed": "no number", "temperature": 0.5}
            answer = post(gateway, {"model": model, **prompt, **extra}, path=path)
            assert answer.status_code == 200, answer.text
            request_id = answer.headers["x-request-id"]
            [seen] = [item for item in httpx.get(upstream + "/log").json() if item["id"] == request_id]
            assert seen["body"]["temperature"] == 0.5
            assert not {"thinking", "seed"} & seen["body"].keys()
    other = post(gateway, {"model": "bot", "messages": ask(), "thinking": True, "cache_salt": "00"})
    assert other.json()["error"]["param"] == "cache_salt"


def test_a_worker_is_told_the_tenant_and_its_salt(gateway: GatewayProcess, upstream: str) -> None:
    """Fairness and prefix caching among tenants rest on it, with an adapter and without."""
    seen = {}
    for key, model in ((ACME, "bot"), (ACME, "base"), (UMBRELLA, "base")):
        answer = post(gateway, {"model": model, "messages": ask()}, key)
        request_id = answer.headers["x-request-id"]
        [entry] = [item for item in httpx.get(upstream + "/log").json() if item["id"] == request_id]
        seen[key, model] = (entry["body"]["tenant"], entry["body"]["cache_salt"])
    assert seen == {
        (ACME, "bot"): ("acme", "aa11"),
        (ACME, "base"): ("acme", "aa11"),
        (UMBRELLA, "base"): ("umbrella", "bb22"),
    }


def test_a_worker_is_told_the_tenants_weight_and_the_keys_priority(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    limits = {"tenant:acme": LimitsRoute(priority=7, weight=2.5), "key:k1": LimitsRoute(priority=4, weight=9)}
    control_plane.replace(gateway, replace(route_table(upstream), limits=limits))
    seen = {}
    for key in (ACME, UMBRELLA):
        request_id = post(gateway, {"model": "base", "messages": ask()}, key).headers["x-request-id"]
        [entry] = [item for item in httpx.get(upstream + "/log").json() if item["id"] == request_id]
        seen[key] = {name: entry["body"].get(name) for name in ("tenant_weight", "priority")}
    assert seen == {
        ACME: {"tenant_weight": 2.5, "priority": 1},
        UMBRELLA: {"tenant_weight": None, "priority": None},
    }


def test_a_body_too_large(gateway: GatewayProcess) -> None:
    answer = post(gateway, {"model": "bot", "messages": [{"role": "user", "content": "x" * (11 << 20)}]})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 404),
        ("GET", "/v1/x", 404),
    ],
)
def test_other_routes(gateway: GatewayProcess, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, gateway.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert answer.headers["x-request-id"]


def test_cross_origin(gateway: GatewayProcess) -> None:
    wanted = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
    }
    path = gateway.url + "/v1/chat/completions"
    answer = httpx.options(path, headers={"origin": "http://web.test", **wanted})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "http://web.test"
    assert answer.headers["access-control-allow-headers"] == wanted["access-control-request-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert (
        "access-control-allow-origin"
        not in httpx.options(path, headers={"origin": "http://evil.test", **wanted}).headers
    )
    answer = post(gateway, {"model": "bot", "messages": ask(tokens=1)}, origin="http://web.test")
    assert answer.headers["access-control-allow-origin"] == "http://web.test"


@pytest.mark.parametrize(
    ("fail", "status", "code"),
    [
        (400, 400, "canned"),
        (422, 422, "canned"),
        (429, 429, "canned"),
        (401, 502, "upstream_error"),
        (402, 502, "upstream_error"),
        (404, 502, "upstream_error"),
        (500, 502, "upstream_error"),
        (503, 502, "upstream_error"),
    ],
)
def test_the_backends_refusal(
    gateway: GatewayProcess, control_plane: ControlPlane, fail: int, status: int, code: str
) -> None:
    answer = post(gateway, {"model": "bot", "messages": ask(fail=fail)})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    # The backend's words about itself are the operator's: the client gets a name to ask by.
    words = "canned failure" if status == fail else answer.headers["x-request-id"]
    assert words in answer.json()["error"]["message"]
    assert ("canned failure" in answer.text) == (status == fail)
    [event] = control_plane.wait_events(1)
    kind = "client_error" if status in (400, 422) else "error"
    assert (event.status, event.error_code, event.completion_tokens) == (kind, code, 0)


@pytest.mark.parametrize("fail", ["event", "cut"])
def test_a_failure_after_200(gateway: GatewayProcess, control_plane: ControlPlane, fail: str) -> None:
    answer = post(
        gateway, {"model": "bot", "stream": True, "messages": ask(tokens=10, delay=0.02, fail=fail)}
    )
    assert answer.status_code == 200
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] != "[DONE]"
    assert json.loads(events[-1])["error"]["code"] == "upstream_error"
    assert len(events) == 6
    [event] = control_plane.wait_events(1)
    assert (event.status, event.error_code, event.completion_tokens) == ("error", "upstream_error", 5)


def test_a_key_revoked_by_a_delta(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    version = httpx.get(gateway.url + "/readyz").json()["routes_version"]
    assert (
        httpx.get(gateway.url + "/v1/models", headers={"authorization": f"Bearer {ACME}"}).status_code == 200
    )
    control_plane.change(version + 1, "keys/k1", None)

    def refused() -> bool:
        return (
            httpx.get(gateway.url + "/v1/models", headers={"authorization": f"Bearer {ACME}"}).status_code
            == 401
        )

    eventually(refused)


def test_importing_the_gateway_loads_no_heavy_plane() -> None:
    code = "import gateway.app, sys; print([m for m in ('django', 'torch', 'celery') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
