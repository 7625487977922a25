"""A call with several adapters before a real worker: each prompt gets its own adapter's answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.route_table import AdapterRoute
from contracts.usage_event import part_id
from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import post
from tests.gateway.test_multi_adapter import chunks_of
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import TOKEN, Worker, run_worker

NAMES = ["all", "tiny", "plain", "all"]
PROMPTS = ["hello", "hello", "hello", "good morning"]
REST = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def worker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with run_worker(tiny_model, tmp_path_factory.mktemp("worker"), "--memory-gib", "0.05") as worker:
        yield worker


@pytest.fixture
def gateway_environ() -> dict[str, str]:
    return {"GRAFTWORK_FLEET_TOKEN": TOKEN}


@pytest.fixture
def refs(tiny_adapters: dict[str, Path]) -> dict[str, AdapterRef]:
    return {name: adapter_ref(tiny_adapters[name], name=name) for name in ("all", "plain")}


@pytest.fixture
def gateway(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, worker: Worker, refs: dict[str, AdapterRef]
) -> GatewayProcess:
    copy = CopyRoute("copy-tiny", "worker", f"http://127.0.0.1:{worker.port}")
    table = replace(
        route_table(),
        bases={"tiny": BaseRoute("tiny", 256, (copy,))},
        adapters={"acme": {name: AdapterRoute("tiny", 1, {1: ref}) for name, ref in refs.items()}},
    )
    control_plane.replace(pooled_gateway, table)
    return pooled_gateway


def complete(gateway: GatewayProcess, **body: Any) -> Any:
    answer = post(gateway, {"model": "tiny", **REST, **body}, path="completions")
    assert answer.status_code == 200, answer.text
    return answer


def test_each_prompt_gets_its_adapters_answer_and_bill(
    gateway: GatewayProcess, control_plane: ControlPlane, refs: dict[str, AdapterRef]
) -> None:
    alone = [complete(gateway, model=name, prompt=text) for name, text in zip(NAMES, PROMPTS, strict=True)]
    texts = [answer.json()["choices"][0]["text"] for answer in alone]
    assert len(set(texts[:3])) == 3, "the base model and both adapters differ on the same prompt"
    usages = [answer.json()["usage"] for answer in alone]

    whole = complete(gateway, prompt=PROMPTS, adapters=NAMES)
    stream = complete(gateway, prompt=PROMPTS, adapters=NAMES, stream=True)
    body = whole.json()
    assert [choice["text"] for choice in body["choices"]] == texts
    streamed = [""] * len(NAMES)
    for chunk in chunks_of(stream.text):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts

    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert body["usage"][name] == sum(usage[name] for usage in usages)
    events = {event.request_id: event for event in control_plane.wait_events(3 * len(NAMES))}
    for answer in (whole, stream):
        parts = [events[part_id(answer.headers["x-request-id"], index)] for index in range(len(NAMES))]
        assert [event.adapter for event in parts] == [refs[n].name if n in refs else "" for n in NAMES]
        assert [(e.prompt_tokens, e.completion_tokens, e.status, e.estimated) for e in parts] == [
            (usage["prompt_tokens"], 12, "ok", False) for usage in usages
        ]


def test_a_prompt_that_is_too_long_is_named(gateway: GatewayProcess) -> None:
    body = {"model": "tiny", **REST, "prompt": ["hello", "x" * 2000], "adapters": ["all", "plain"]}
    refused = post(gateway, body, path="completions")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "prompt[1]",
    )
    assert error["message"].startswith("prompt[1]: This model's maximum context length is")
