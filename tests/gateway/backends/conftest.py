"""A gateway in front of a local SageMaker in front of a worker: all real processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute, CopyRoute, SageMakerTarget, adapter_component
from contracts.keys import KeyRoute
from contracts.route_table import AdapterRoute, RouteTable, TenantRoute
from contracts.usage_event import UsageEvent
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess
from tests.sagemaker_local.processes import REGION, TEMPORARY, LocalSageMaker, run_local
from tests.worker_engine.tiny_adapter import adapter_ref

BASES = {
    "components": ("base", "components", "invocations"),
    "reference": ("base", "reference", "invocations"),
    "name": ("base", "name", "invocations"),
    "openai": ("base", "reference", "openai"),
    "asleep": ("asleep", "components", "invocations"),
}
"""Base models by how their copy is spoken to: component, naming of adapters, API."""

HOLD_SECONDS = 600
"""Longer than a client waits: a request that is answered was not held to the end."""


@dataclass(frozen=True)
class Walk:
    """A client's view of the gateway, and the local SageMaker behind it."""

    gateway: GatewayProcess
    control_plane: ControlPlane
    local: LocalSageMaker
    ref: AdapterRef

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.gateway.url + "/v1", api_key=ACME, max_retries=0)

    def post(self, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {ACME}"}
        values = {"messages": [{"role": "user", "content": "Hé"}], "temperature": 0, "ignore_eos": True}
        return httpx.post(
            self.gateway.url + "/v1/chat/completions", json=values | body, headers=headers, timeout=60
        )

    def event(self) -> UsageEvent:
        (event,) = self.control_plane.wait_events(1)
        return event


@pytest.fixture(scope="session")
def ref(tiny_adapters: dict[str, Path]) -> AdapterRef:
    return adapter_ref(tiny_adapters["plain"])


@pytest.fixture(scope="session")
def local(
    tiny_model: Path,
    tiny_adapters: dict[str, Path],
    ref: AdapterRef,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalSageMaker]:
    components = {adapter_component("base", ref.name): "plain"}
    folder = tmp_path_factory.mktemp("local")
    with run_local(tiny_model, tiny_adapters, folder, components) as running:
        body = {"lora_name": ref.name, "lora_path": str(running.adapters / "plain")}
        assert running.worker.call("/v1/load_lora_adapter", body)[0] == 200
        yield running


@pytest.fixture
def gateway_environ() -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": TEMPORARY["access_key"],
        "AWS_SECRET_ACCESS_KEY": TEMPORARY["secret_key"],
        "AWS_SESSION_TOKEN": TEMPORARY["session_token"],
    }


def table(local: LocalSageMaker, ref: AdapterRef, version: int) -> RouteTable:
    """A route table with new copies per test: the gateway remembers earlier failures of copies."""

    def copy(name: str, target: SageMakerTarget) -> CopyRoute:
        return CopyRoute(f"{name}.{version}", "sagemaker", local.url, sagemaker=target)

    bases, adapters = {}, {}
    for name, (component, naming, api) in BASES.items():
        place = copy(name, SageMakerTarget(REGION, "shared", component, naming, api))
        bases[name] = BaseRoute("tiny", 512, (place,))
        adapters[f"bot-{name}"] = AdapterRoute(name, 1, {1: ref})
    pair = (
        copy("first", SageMakerTarget(REGION, "shared", "base", "name")),
        copy("second", SageMakerTarget(REGION, "single", "", "name")),
    )
    bases["pair"] = BaseRoute("tiny", 512, pair)
    sleepy = SageMakerTarget(REGION, "sleepy", "base", "name")
    bases["sleepy"] = BaseRoute("tiny", 512, (copy("sleepy", sleepy),), hold_seconds=HOLD_SECONDS)
    both = (copy("sleeping", sleepy), copy("other", SageMakerTarget(REGION, "single", "", "name")))
    bases["both"] = BaseRoute("tiny", 512, both, hold_seconds=HOLD_SECONDS)
    adapters["bot-sleepy"] = AdapterRoute("sleepy", 1, {1: ref}, fallbacks={"": ("sleepy",)})
    stray = replace(ref, name=ref.name.replace("v1", "v2"))
    adapters["stray"] = AdapterRoute("components", 1, {1: stray})
    adapters["unknown"] = AdapterRoute("name", 1, {1: stray})
    return RouteTable(
        version=version,
        keys={"k1": KeyRoute("acme", hashlib.sha256(b"secret1").hexdigest())},
        tenants={"acme": TenantRoute("Acme", "aa11")},
        bases=bases,
        adapters={"acme": adapters},
    )


@pytest.fixture
def walk(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, local: LocalSageMaker, ref: AdapterRef
) -> Walk:
    control_plane.replace(pooled_gateway, table(local, ref, pooled_gateway.routes_version() + 2))
    local.put("faults", [])
    return Walk(pooled_gateway, control_plane, local, ref)


def sse(text: str) -> list[Any]:
    """The data of server-sent events, `[DONE]` as itself."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


__all__ = ["Walk", "sse"]
