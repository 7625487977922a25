"""A backend's error in mid-stream, of every kind: our words for the client, the truth for the breaker."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.api.sse import EventStream, UsageView
from gateway.api.usage import Usage
from gateway.backends.error_event import stream_error
from gateway.backends.lmi import LineTranslator
from gateway.backends.upstream import Refusal
from gateway.errors import BadRequest, UpstreamBroken, UpstreamFailed, UpstreamTimeout
from tests.gateway.backends.conftest import sse
from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask, post

pytestmark = pytest.mark.costly("starts gateways of its own")

WORDS = "/srv/models/llama: the prompt was 'my secret'"
VLLM_500 = {"message": WORDS, "type": "InternalServerError", "param": None, "code": 500}
VLLM_400 = {"message": WORDS, "type": "BadRequestError", "param": None, "code": 400}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": WORDS, "type": "server_error", "code": "generation_failed"}, UpstreamFailed),
        ({"message": WORDS, "type": "timeout_error", "code": "timeout"}, UpstreamTimeout),
        ({"message": WORDS, "type": "server_error", "code": "deadline_exceeded"}, UpstreamTimeout),
        ({"message": WORDS, "type": "invalid_request_error", "code": "grammar_too_complex"}, BadRequest),
        ({"message": WORDS, "type": "server_error", "code": "unavailable"}, UpstreamBroken),
        (VLLM_400, BadRequest),
        (VLLM_500, UpstreamBroken),
        ({"message": WORDS, "code": 429}, UpstreamBroken),
        ({"message": WORDS, "type": "server_error", "code": "424"}, BadRequest),
        ({"message": WORDS, "code": ["4", "0", "0"]}, UpstreamBroken),
        (WORDS, UpstreamBroken),
        ([WORDS], UpstreamBroken),
        ({}, UpstreamBroken),
    ],
    ids=str,
)
def test_what_servers_say_and_what_it_means(error: object, expected: type[Exception]) -> None:
    failure = stream_error(error, "r-1")
    assert type(failure) is expected
    assert "secret" not in failure.message
    assert "/srv" not in failure.message


@pytest.mark.parametrize("kind", ["worker", "openai_http"])
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_it_is_told_in_our_words_and_billed(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, kind: str, path: str
) -> None:
    version = httpx.get(gateway.url + "/readyz").json()["routes_version"] + 1
    control_plane.publish(replace(route_table(upstream, kind=kind), version=version))
    gateway.wait_version(version)
    steer = ask(tokens=10, delay=0.01, fail="event")
    body: dict[str, Any] = {"model": "base", "stream": True}
    body |= {"messages": steer} if path.startswith("chat") else {"input": steer[0]["content"]}
    answer = post(gateway, body, path=path)
    assert answer.status_code == 200
    assert "fell over" not in answer.text
    assert "/srv" not in answer.text
    [event] = control_plane.wait_events(1)
    assert (event.status, event.error_code, event.completion_tokens) == ("error", "upstream_error", 5)
    if path.startswith("chat"):
        *chunks, last = sse(answer.text)
        assert len(chunks) == 5
        assert set(last["error"]) == {"message", "type", "code", "param"}
        assert last["error"]["code"] == "upstream_error"
        assert answer.headers["x-request-id"] in last["error"]["message"]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"error": "%s", "code": 424}\n' % WORDS.encode(),
        b'data: {"error": %s}\n\n' % json.dumps(VLLM_400).encode(),
    ],
    ids=["LMI's line", "a server-sent event"],
)
def test_a_container_on_sagemaker(payload: bytes) -> None:
    """The translator's output raises the same error as any other backend's."""
    events = EventStream(Usage(), UsageView.HIDDEN)
    assert events.feed(LineTranslator("r-1", "base", chat=True).feed(payload)) == b""
    assert events.failed
    assert type(stream_error(events.error, "r-1")) is BadRequest


@pytest.mark.parametrize(("code", "opened"), [("engine_dead", True), ("generation_failed", False)])
def test_the_breaker_counts_what_is_the_copys_fault(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, code: str, opened: bool
) -> None:
    version = httpx.get(gateway.url + "/readyz").json()["routes_version"] + 1
    table = route_table(upstream)
    [copy] = table.bases["base"].copies
    own = replace(table.bases["base"], copies=(replace(copy, id=f"copy-{code}"),))
    control_plane.publish(replace(table, version=version, bases={"base": own}))
    gateway.wait_version(version)
    body = {"model": "base", "stream": True, "messages": ask(tokens=4, delay=0.0001, fail="event", code=code)}
    statuses = [post(gateway, body).status_code for _ in range(14)]
    assert (503 in statuses) is opened, statuses


@pytest.mark.parametrize(
    ("message", "died"),
    [
        ("EngineCore encountered an issue. See stack trace (above) for the root cause.", True),
        ("KeyError: 'EngineCore encountered an issue'", False),
        ('{"message": "EngineCore encountered an issue"}', False),
    ],
)
def test_an_echoed_text_ends_no_engine(message: str, died: bool) -> None:
    body = json.dumps({"error": {"message": message, "code": 500}}).encode()
    assert Refusal(500, body, {}).engine_died is died
