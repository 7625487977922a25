"""An adapter that ends engines is held back by every gateway; others are served as before."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import redis

from contracts.adapters.reference import AdapterRef
from contracts.quarantine import QUARANTINES, Quarantine
from contracts.route_table import AdapterRoute, RouteTable
from tests.conftest import free_port
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.routing.conftest import server_thread, stand_ins
from tests.gateway.routing.standin import StandIn
from tests.gateway.test_app import ask, post
from tests.gateway.test_dispatch import new_name
from tests.waiting import eventually

__all__ = ["server_thread", "stand_ins"]


def with_killer(table: RouteTable, name: str, **fallbacks: Any) -> tuple[RouteTable, AdapterRef]:
    """`table` with acme's adapter `name` on the base model."""
    ref = reference("acme", name)
    route = AdapterRoute("base", 1, {1: ref}, **fallbacks)
    return replace(table, adapters={**table.adapters, "acme": {**table.adapters["acme"], name: route}}), ref


def call(gateway: GatewayProcess, model: str) -> Any:
    return post(gateway, {"model": model, "messages": ask()})


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def quarantines(url: str) -> dict[str, Quarantine]:
    found: Any = redis.Redis.from_url(url).hgetall(QUARANTINES)
    return {name.decode(): Quarantine.from_json(text) for name, text in found.items()}


@pytest.mark.costly("starts a second gateway")
def test_two_dead_engines_hold_an_adapter_back_on_every_gateway_until_it_is_released(
    pooled_gateway: GatewayProcess,
    own_gateway: GatewayProcess,
    control_plane: ControlPlane,
    redis_url: str,
    stand_ins: Callable[[int], list[StandIn]],
) -> None:
    copies = stand_ins(3)
    table, ref = with_killer(
        route_table(*(copy.url for copy in copies), kind="openai_http", name=new_name()), "killer"
    )
    for copy in copies:
        copy.behave(fault="engine_died", model=ref.name)
    control_plane.replace(pooled_gateway, table)
    own_gateway.start()
    for _ in range(2):
        assert call(pooled_gateway, "killer").json()["error"]["code"] == "engine_died"
    (living,) = (copy for copy in copies if not copy.calls())
    # A request may still come before Redis has the second death.
    living.behave()
    eventually(lambda: call(pooled_gateway, "killer").status_code == 503)
    served = living.calls()
    refused = call(pooled_gateway, "killer")
    assert refused.json()["error"]["code"] == "adapter_quarantined"
    assert "killer@v1" in refused.json()["error"]["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 600
    eventually(lambda: call(own_gateway, "killer").json()["error"]["code"] == "adapter_quarantined")
    assert living.calls() == served
    for copy in copies:
        copy.behave()
    assert call(pooled_gateway, "bot").status_code == 200
    assert call(own_gateway, "base").status_code == 200
    (found,) = quarantines(redis_url).values()
    assert (found.adapter, found.base, found.times) == (ref.name, "base", 1)
    released = replace(found, until=found.at, times=0)
    redis.Redis.from_url(redis_url).hset(QUARANTINES, ref.name, released.to_json())
    eventually(lambda: call(pooled_gateway, "killer").status_code == 200)
    eventually(lambda: call(own_gateway, "killer").status_code == 200)


def test_a_quarantined_adapter_is_replaced_by_its_fallback(
    pooled_gateway: GatewayProcess,
    control_plane: ControlPlane,
    redis_url: str,
    stand_ins: Callable[[int], list[StandIn]],
) -> None:
    table = route_table(stand_ins(1)[0].url, kind="openai_http", name=new_name())
    table, ref = with_killer(table, "falls", fallbacks={"": ("bot",)})
    control_plane.replace(pooled_gateway, table)
    found = Quarantine("base", ref.name, 0.0, 1e12, 1, ("copy-1", "copy-2"))
    redis.Redis.from_url(redis_url).hset(QUARANTINES, ref.name, found.to_json())
    eventually(lambda: call(pooled_gateway, "falls").headers["x-graftwork-served-model"] == "bot@v1")


@dataclass(slots=True)
class MortalServers:
    """Processes that a request for a model kills."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, deadly: str, number: int) -> list[str]:
        """Start servers and return their URLs."""
        ports = [free_port() for _ in range(number)]
        command = [sys.executable, "-m", "tests.gateway.mortal_server"]
        self.processes.extend(subprocess.Popen([*command, str(port), deadly]) for port in ports)
        for port in ports:
            eventually(partial(is_open, port))
        return [f"http://127.0.0.1:{port}" for port in ports]


@pytest.fixture
def mortal_servers() -> Iterator[MortalServers]:
    servers = MortalServers()
    yield servers
    for process in servers.processes:
        process.kill()
        process.wait()


@pytest.mark.costly("starts five servers, which the requests kill")
def test_an_adapter_whose_requests_kill_server_processes_is_held_back(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, redis_url: str, mortal_servers: MortalServers
) -> None:
    ref = reference("acme", "segfault")
    urls = mortal_servers.start(ref.name, 5)
    table, _ = with_killer(route_table(*urls, kind="openai_http", name=new_name()), "segfault")
    control_plane.replace(pooled_gateway, table)
    eventually(lambda: call(pooled_gateway, "bot").status_code == 200)
    # One request may be tried on three copies, since its connection only broke.
    while sum(process.poll() is not None for process in mortal_servers.processes) < 2:
        assert call(pooled_gateway, "segfault").status_code in (502, 503)
    eventually(lambda: quarantines(redis_url))
    eventually(lambda: call(pooled_gateway, "segfault").json()["error"]["code"] == "adapter_quarantined")
    assert set(quarantines(redis_url)) == {ref.name}
    eventually(lambda: call(pooled_gateway, "bot").status_code == 200)
