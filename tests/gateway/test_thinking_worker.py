"""Thinking through the gateway and a real worker: Qwen3's chat template, a model whose text is known.

The usage event has exactly the tokens that the checkpoint's tokenizer counts in the thought.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from contracts.base_routes import BaseRoute, CopyRoute
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import client, post
from tests.worker_engine.thinking.scripted_model import END_THINK, THINK, write_scripted
from tests.worker_engine.thinking.test_thinking_api import ANSWER, THOUGHT, count
from tests.worker_process import TOKEN, Worker, run_worker

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
EXACT = count(THINK + THOUGHT + END_THINK)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Thinks THOUGHT in circles until a budget ends it; without thinking it writes ANSWER."""
    folder = tmp_path_factory.mktemp("worker")
    path = ["\n", THINK, *THOUGHT, "a"]
    model = write_scripted(folder / "model", [path, [END_THINK, "\n\n", *ANSWER, "<|im_end|>"]])
    with run_worker(model, folder, "--memory-gib", "0.05") as worker:
        yield worker


@pytest.fixture
def gateway_environ() -> dict[str, str]:
    return {"GRAFTWORK_FLEET_TOKEN": TOKEN}


@pytest.fixture
def gateway(pooled_gateway: GatewayProcess, control_plane: ControlPlane, worker: Worker) -> GatewayProcess:
    copy = CopyRoute("copy-tiny", "worker", f"http://127.0.0.1:{worker.port}")
    table = replace(route_table(), bases={"tiny": BaseRoute("tiny", 1024, (copy,))}, adapters={})
    control_plane.replace(pooled_gateway, table)
    return pooled_gateway


@pytest.mark.parametrize("include", [True, False])
def test_a_thought_is_metered_to_the_token(
    gateway: GatewayProcess, control_plane: ControlPlane, include: bool
) -> None:
    body = CHAT | {"thinking_token_budget": len(THOUGHT), "include_reasoning": include}
    whole = post(gateway, body)
    message = whole.json()["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (THOUGHT if include else None, ANSWER)
    details = whole.json()["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": EXACT}
    streamed = post(gateway, body | {"stream": True, "stream_options": {"include_usage": True}})
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == (THOUGHT if include else "")
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
    assert chunks[-1]["usage"]["completion_tokens_details"] == details
    for event in control_plane.wait_events(2):
        assert (event.reasoning_tokens, event.completion_tokens, event.status) == (
            EXACT,
            whole.json()["usage"]["completion_tokens"],
            "ok",
        )


def test_without_thinking_nothing_is_counted(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    answer = post(gateway, CHAT | {"chat_template_kwargs": {"enable_thinking": False}})
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER
    (event,) = control_plane.wait_events(1)
    assert (event.reasoning_tokens, event.completion_tokens) == (0, count(ANSWER + "<|im_end|>"))


def test_max_tokens_inside_the_thought(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    choice = post(gateway, CHAT | {"max_tokens": 9}).json()["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["finish_reason"]) == (THOUGHT[:8], "length")
    (event,) = control_plane.wait_events(1)
    assert (event.reasoning_tokens, event.completion_tokens) == (9, 9)


def test_a_client_that_hangs_up_in_the_thought_pays_for_what_came(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    body = CHAT | {"max_tokens": 900, "stream": True}
    with httpx.stream(
        "POST", f"{gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {ACME}"}
    ) as answer:
        seen = 0
        for line in answer.iter_lines():
            seen += line.count('"reasoning_content":"')
            if seen >= 5:
                break
    (event,) = control_plane.wait_events(1)
    assert event.status == "cancelled"
    assert seen <= event.reasoning_tokens == event.completion_tokens < 900


def test_responses_have_a_reasoning_item(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    api, extra = client(gateway), {"thinking_token_budget": 5}
    response = api.responses.create(model="tiny", input="hi", reasoning={"effort": "high"}, extra_body=extra)
    thought, message = response.output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.content or []] == [THOUGHT[:5]]
    assert response.output_text == ANSWER
    assert message.type == "message"
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 7
    events = list(
        api.responses.create(
            model="tiny", input="hi", reasoning={"effort": "high"}, extra_body=extra, stream=True
        )
    )
    texts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(texts) == THOUGHT[:5]
    assert [event.reasoning_tokens for event in control_plane.wait_events(2)] == [7, 7]


def test_what_the_template_does_not_know_is_refused_by_name(gateway: GatewayProcess) -> None:
    refused = post(gateway, CHAT | {"chat_template_kwargs": {"no_such": 1}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs.no_such")
