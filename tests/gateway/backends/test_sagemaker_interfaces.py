"""The interface of an endpoint that a request takes, and answers by another model than the adapter."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import CopyRoute, SageMakerTarget
from contracts.route_table import AdapterRoute
from gateway.api.schema import parse
from gateway.backends.base import BackendRequest
from gateway.backends.lmi import LineTranslator, whole_answer
from gateway.backends.sagemaker import SageMakerBackend
from gateway.backends.sagemaker_interfaces import (
    Interface,
    call_headers,
    expected_model,
    interface_of,
    request_body,
)
from gateway.errors import NotServed, UpstreamBroken
from gateway.routing import resolve
from tests.gateway.conftest import route_table
from tests.worker_engine.tiny_adapter import adapter_ref

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"prompt": "x"}


@pytest.fixture(scope="session")
def ref(tiny_adapters: dict[str, Path]) -> AdapterRef:
    return adapter_ref(tiny_adapters["plain"])


def request(
    target: SageMakerTarget, ref: AdapterRef | None, body: dict[str, Any], *, engine: str = ""
) -> BackendRequest:
    """Return a request for the base model, or for an adapter."""
    table = route_table("http://x")
    if ref is not None:
        table = replace(table, adapters={"acme": {"bot": AdapterRoute("base", 1, {1: ref})}})
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    call = parse(path, json.dumps({"model": "bot" if ref else "base", **body}).encode())
    resolution = resolve(table, "acme", call.model, "subject")
    copy = CopyRoute("copy-1", "sagemaker", "", sagemaker=target, engine=engine)
    return BackendRequest(call, resolution, copy, "request-1", "aa11", "acme")


def target(adapters: str, api: str, container: str = "vllm") -> SageMakerTarget:
    return SageMakerTarget("eu-central-1", "shared", "base", adapters, api, container)


@pytest.mark.parametrize(
    ("adapters", "api", "adapted", "body", "interface"),
    [
        ("components", "invocations", True, CHAT, Interface.INVOCATIONS),
        ("components", "openai", True, CHAT, Interface.INVOCATIONS),
        ("components", "openai", False, CHAT, Interface.OPENAI),
        ("components", "openai", False, TEXT, Interface.INVOCATIONS),
        ("name", "openai", True, CHAT, Interface.OPENAI),
        ("name", "openai", False, TEXT, Interface.INVOCATIONS),
        ("name", "routes", True, TEXT, Interface.ROUTED),
        ("name", "routes", True, CHAT, Interface.ROUTED),
        ("components", "routes", True, CHAT, Interface.INVOCATIONS),
    ],
)
def test_a_request_takes_an_interface_on_which_its_adapter_is_read(
    ref: AdapterRef, adapters: str, api: str, adapted: bool, body: dict[str, Any], interface: Interface
) -> None:
    where = target(adapters, api)
    ask = request(where, ref if adapted else None, body)
    assert interface_of(ask, where) is interface
    named = adapted and interface is not Interface.INVOCATIONS
    assert request_body(ask, where).get("model") == (ref.name if named else None)
    attributes = call_headers(ask, where)["X-Amzn-SageMaker-Custom-Attributes"]
    routed = f",route={ask.call.path}" if interface is Interface.ROUTED else ""
    assert attributes == f"x-request-id=request-1{routed}"


def test_an_adapter_that_the_container_would_not_read_is_refused(ref: AdapterRef) -> None:
    where = target("name", "openai")
    with pytest.raises(NotServed, match="Use /v1/chat/completions"):
        request_body(request(where, ref, TEXT), where)
    lmi = target("name", "invocations", "lmi")
    assert request_body(request(lmi, ref, TEXT), lmi)["adapters"] == ref.name


def test_an_answer_by_the_base_model_in_place_of_the_adapter_is_an_error(ref: AdapterRef) -> None:
    """Whatever AWS does with `model` on its way, no client gets the base model for an adapter."""
    where = target("name", "routes")
    expected = expected_model(request(where, ref, CHAT), where)
    assert expected == ref.name
    assert expected_model(request(where, None, CHAT), where) == ""
    chunk = {"model": "base", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
    for line in (orjson.dumps(chunk) + b"\n", b"data: " + orjson.dumps(chunk) + b"\n\n"):
        with pytest.raises(UpstreamBroken, match="another model"):
            LineTranslator("r", "bot", chat=True, expected=expected).feed(line)
        with pytest.raises(UpstreamBroken, match="another model"):
            LineTranslator("r", "bot", chat=True, expected=expected).feed(
                line.replace(b'"model":"base",', b"")
            )
        right = line.replace(b'"base"', orjson.dumps(ref.name))
        assert b'"bot"' in LineTranslator("r", "bot", chat=True, expected=expected).feed(right)
    whole = orjson.dumps({"model": "base", "choices": []})
    with pytest.raises(UpstreamBroken, match="another model"):
        whole_answer(whole, "r", "bot", chat=True, expected=expected)
    assert whole_answer(whole, "r", "bot", chat=True)


@pytest.mark.parametrize("container", ["lmi", "vllm"])
def test_a_bound_of_the_thought_that_the_containers_version_ignores_is_refused(container: str) -> None:
    where = target("name", "invocations", container)
    backend = SageMakerBackend(cast(Any, None), cast(Any, None))
    ask = request(where, None, {**CHAT, "thinking_token_budget": 9}, engine="vLLM 0.11.1")
    with pytest.raises(NotServed, match=r"vLLM 0\.11\.1") as caught:
        asyncio.run(backend.stream(ask))
    assert caught.value.param == "thinking_token_budget"
