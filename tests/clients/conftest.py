"""A gateway in front of a real worker, for the clients that people use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx
import openai
import pytest
import redis

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyRoute
from contracts.limits import Limit, LimitsRoute
from contracts.route_table import AdapterRoute, RouteTable
from tests.clients.outside.requests_and_results import SLOW, TINY
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.worker_engine.tiny_adapter import adapter_ref, make_adapter
from tests.worker_engine.tiny_model import HERMES_TEMPLATE, write_model
from tests.worker_process import TOKEN, Worker, run_worker

SLOW_SECONDS = 4.0
"""The key SLOW may send one request in any span of so long."""


@dataclass(frozen=True)
class Platform:
    """A random model whose template knows tools, as base `tiny` and as `elsewhere`, which is reached as any
    OpenAI-compatible server is; and the adapter `bot`."""

    worker: Worker
    gateway: GatewayProcess
    bot: AdapterRef
    control_plane: ControlPlane

    @property
    def url(self) -> str:
        return self.gateway.url + "/v1"

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=ACME, max_retries=0)

    def table(self, version: int) -> RouteTable:
        url = f"http://127.0.0.1:{self.worker.port}"
        bases = {
            "tiny": BaseRoute("tiny", 2048, (CopyRoute("copy-1", "worker", url),)),
            "elsewhere": BaseRoute("tiny", 2048, (CopyRoute("copy-2", "openai_http", url),)),
        }
        adapters = {"acme": {"bot": AdapterRoute("tiny", 1, {1: self.bot})}}
        table = route_table()
        keys = {
            name: KeyRoute("acme", hashlib.sha256(secret.encode()).hexdigest())
            for _, name, secret in (key.split("_") for key in (SLOW, TINY))
        }
        limits = {
            "key:k3": LimitsRoute((Limit("requests", 1, seconds=SLOW_SECONDS),)),
            "key:k4": LimitsRoute((Limit("tokens", 5),)),
        }
        return replace(
            table, version=version, keys={**table.keys, **keys}, bases=bases, adapters=adapters, limits=limits
        )


@pytest.fixture(scope="session")
def _processes(
    lasting_redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Worker, GatewayProcess, AdapterRef]]:
    folder = tmp_path_factory.mktemp("clients")
    write_model(folder / "model", seed=7, max_position_embeddings=2048)
    (folder / "model" / "chat_template.jinja").write_text(HERMES_TEMPLATE)
    adapter = make_adapter(folder / "model", folder / "bot", seed=1, r=8, target_modules=["q_proj", "v_proj"])
    environ = {"GRAFTWORK_FLEET_TOKEN": TOKEN, "GRAFTWORK_OPENAI_HTTP_KEY": TOKEN}
    gateway = GatewayProcess(lasting_redis, folder / "wal", folder / "log", environ=environ)
    with run_worker(folder / "model", folder) as worker:
        gateway.start(ready=False)
        yield worker, gateway, adapter_ref(adapter, name="bot")
        gateway.stop()


@pytest.fixture
def platform(_processes: tuple[Worker, GatewayProcess, AdapterRef], redis_url: str) -> Iterator[Platform]:
    worker, gateway, bot = _processes
    with redis.Redis.from_url(redis_url) as client:
        platform = Platform(worker, gateway, bot, ControlPlane(client))
        # The emptied server begins again; the table of the test before must not be newer.
        version = (httpx.get(gateway.url + "/readyz").json()["routes_version"] or 0) + 1
        platform.control_plane.publish(platform.table(version))
        gateway.wait_version(version)
        yield platform
