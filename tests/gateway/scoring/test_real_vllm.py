"""A real vLLM behind the gateway: its answers are passed on, and billed by its own counts.

Start one on any sequence-classification checkpoint with one label, and name it in the environment:
`vllm serve MODEL --served-model-name base --runner pooling --max-model-len 256`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest

from contracts.base_routes import BaseRoute, CopyRoute
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table

URL: Final = os.environ.get("GRAFTWORK_TEST_VLLM_POOLING_URL", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not URL, reason="GRAFTWORK_TEST_VLLM_POOLING_URL names no vLLM"),
]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/rerank": {"query": "a cat", "documents": ["xyz", {"text": "cat"}, "at"], "top_n": 2},
    "/v1/score": {"queries": "a cat", "items": ["xyz", "cat"], "use_activation": False},
    "/v1/classify": {"input": ["xyz", "cat"], "truncate_prompt_tokens": 2},
}


@pytest.mark.parametrize("path", BODIES)
def test_its_answers_and_counts(
    path: str, pooled_gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    copies = (CopyRoute(f"real{path.replace('/', '-')}", "openai_http", URL),)
    control_plane.replace(
        pooled_gateway, replace(route_table(URL), bases={"base": BaseRoute("base", 256, copies)})
    )
    headers = {"authorization": f"Bearer {ACME}"}
    answer = httpx.post(
        pooled_gateway.url + path, json={"model": "base", **BODIES[path]}, headers=headers, timeout=120
    )
    assert answer.status_code == 200, answer.text
    value = answer.json()
    items = value["results"] if path == "/v1/rerank" else value["data"]
    assert len(items) == 2
    assert value["usage"]["prompt_tokens"] > 0
    (event,) = control_plane.wait_events(1)
    assert (event.prompt_tokens, event.completion_tokens) == (value["usage"]["prompt_tokens"], 0)
    assert not event.estimated
    too_long: dict[str, Any] = {
        "/v1/rerank": {"documents": ["x y " * 800]},
        "/v1/score": {"items": "x y " * 800},
    }
    if path in too_long:
        body = {"model": "base", **BODIES[path], **too_long[path]}
        refused = httpx.post(pooled_gateway.url + path, json=body, headers=headers, timeout=120)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
