"""Responses over HTTP where the backend fails, and what is billed then."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess
from tests.gateway.test_app import client


def plan(**told: Any) -> str:
    """An input that controls the canned backend."""
    return json.dumps({"delay": 0.001, "tokens": 10, **told})


@pytest.mark.parametrize("fail", ["event", "cut"])
def test_a_stream_that_breaks_ends_with_a_failed_response(
    gateway: GatewayProcess, control_plane: ControlPlane, fail: str
) -> None:
    with client(gateway) as api:
        events = list(api.responses.create(model="bot", input=plan(fail=fail, delay=0.02), stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert last.response.output_text == "tok0 tok1 tok2 tok3 tok4 "
    assert [event.sequence_number for event in events] == list(range(len(events)))
    [event] = control_plane.wait_events(1)
    assert (event.status, event.completion_tokens) == ("error", 5)


def test_a_refusal_is_an_http_status(gateway: GatewayProcess) -> None:
    with client(gateway) as api, pytest.raises(openai.BadRequestError) as caught:
        api.responses.create(model="bot", input=plan(fail=400), stream=True)
    assert caught.value.code == "canned"


def test_events_are_named_and_nothing_follows_the_last(gateway: GatewayProcess) -> None:
    body = {"model": "bot", "input": plan(delay=0), "stream": True}
    headers = {"authorization": f"Bearer {ACME}"}
    answer = httpx.post(gateway.url + "/v1/responses", json=body, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("event: response.") for block in blocks)
    assert blocks[-1].startswith("event: response.incomplete\n")
    assert answer.headers["x-graftwork-adapter"]


def test_cached_tokens_are_told_apart(gateway: GatewayProcess) -> None:
    with client(gateway) as api:
        usage = api.responses.create(model="bot", input=plan(prompt_tokens=40)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (40, 20)
    assert (usage.output_tokens, usage.total_tokens) == (10, 50)


def test_a_client_that_stores_nothing_sends_its_answer_back(gateway: GatewayProcess) -> None:
    """Agents on top of the openai client do so: items of the answer are part of the next input."""
    settings: dict[str, Any] = {
        "model": "bot",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "truncation": "auto",
        "reasoning": {"summary": "auto"},
        "text": {"verbosity": "low"},
        "max_tool_calls": 4,
    }
    with client(gateway) as api:
        first = api.responses.create(input=plan(), **settings)
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
        items: list[Any] = [{"role": "user", "content": plan()}, reasoning, *first.output]
        items += [item.model_dump() for item in first.output]
        second = api.responses.create(input=[*items, {"role": "user", "content": plan()}], **settings)
    assert second.output_text == first.output_text
    assert second.max_tool_calls == 4
