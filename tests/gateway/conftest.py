"""Real processes for the gateway's tests: a canned backend, and gateways over a real Valkey server."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import redis

from contracts.adapters.reference import AdapterRef, engine_name
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyRoute
from contracts.redis_names import ROUTES_DELTAS, ROUTES_SNAPSHOT, ROUTES_VERSION, USAGE_STREAM
from contracts.route_table import AdapterRoute, RouteChange, RouteEntry, RouteTable, TenantRoute
from contracts.usage_event import UsageEvent
from gateway.admission import Plan
from gateway.api.dialect import ApiDialect
from gateway.observability import RequestTrace
from gateway.request_context import RequestContext
from gateway.routing import Caller, Resolution
from tests.conftest import ROOT, free_port, stop
from tests.gateway.gateway_pool import GatewayPool
from tests.waiting import eventually

FLEET_TOKEN = "fleet-token"
SERVER = os.environ.get("GRAFTWORK_TEST_GATEWAY_SERVER", "own")
"""`own`, or `uvicorn` to run the tests that start a gateway with uvicorn in place of gateway/http/server."""
_PROGRAMS = {"own": "gateway", "uvicorn": "tests.gateway.uvicorn_server"}
_GATEWAYS = frozenset({"gateway", "pooled_gateway", "own_gateway"})
_OF_OWN_SERVER = {
    "security/test_slow_clients.py": "uvicorn has no time limit for a request's head",
    "security/test_smuggling.py": "uvicorn refuses other malformed requests",
    "security/test_tls.py": "the program for uvicorn serves plain HTTP",
    "lifecycle/test_drain.py::test_many_signals": "signals the serving process, a child of the gateway's own",
    "observability/test_logs.py::test_every_line_is_an_object": "the own server's log lines are read",
    "observability/test_metrics.py::test_any_process_tells_of_all": "needs several processes",
    "test_operation.py::test_two_processes_lose_nothing": "needs several processes",
    "test_operation.py::test_a_full_disk": "limits the serving process, a child of the gateway's own",
}
"""Tests of gateway/http/server itself, by the beginning of their names, with the reason."""
ACME = "gw_k1_secret1"
UMBRELLA = "gw_k2_secret2"


def reference(tenant: str, adapter: str, version: int = 1) -> AdapterRef:
    sha256 = hashlib.sha256(f"{tenant}/{adapter}/{version}".encode()).hexdigest()
    name = engine_name(tenant=tenant, adapter=adapter, version=version, sha256=sha256)
    return AdapterRef(name, f"file:///adapters/{sha256}/", sha256, 8)


def route_table(*urls: str, kind: str = "worker", name: str = "copy") -> RouteTable:
    """Two tenants with a key and an adapter each, one base model with a copy at each of `urls`."""
    copies = tuple(CopyRoute(f"{name}-{number}", kind, url) for number, url in enumerate(urls, 1))
    bots = {number: reference("acme", "bot", number) for number in (1, 2)}
    return RouteTable(
        version=1,
        keys={
            "k1": KeyRoute("acme", hashlib.sha256(b"secret1").hexdigest(), project="p1"),
            "k2": KeyRoute("umbrella", hashlib.sha256(b"secret2").hexdigest()),
        },
        tenants={"acme": TenantRoute("Acme", "aa11"), "umbrella": TenantRoute("Umbrella", "bb22")},
        bases={"base": BaseRoute("base", 2048, copies)},
        adapters={
            "acme": {"bot": AdapterRoute("base", 1, bots, {"prod": 2})},
            "umbrella": {"hive": AdapterRoute("base", 1, {1: reference("umbrella", "hive")})},
        },
    )


def request_context(dialect: ApiDialect, resolution: Resolution) -> RequestContext:
    """An admitted request of acme's, to which no limit applies."""
    unused = cast(Any, None)
    trace, caller = RequestTrace("r1", ""), Caller("k1", "acme", "p1")
    context = RequestContext(unused, unused, unused, [], trace, unused, caller, b"")
    context.dialect, context.models = dialect, (resolution,)
    context.ticket = Plan(5, None).take(0, 0, 0.0)
    return context


@dataclass(slots=True)
class ControlPlane:
    """A control plane for tests: publishes routes to Redis and reads usage from it."""

    client: redis.Redis
    since: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """Unix milliseconds: the gateway may still ship what the test before this one asked."""

    def publish(self, table: RouteTable) -> None:
        self.client.set(ROUTES_SNAPSHOT, table.snapshot())
        self.client.set(ROUTES_VERSION, table.version)

    def replace(self, gateway: GatewayProcess, table: RouteTable) -> int:
        """Replace the routes of a running gateway; return the version that `table` got."""
        version = gateway.routes_version() + 2
        self.publish(replace(table, version=version))
        # The change skips a version, so that the gateway reads the snapshot at once.
        self.client.xadd(ROUTES_DELTAS, {"change": RouteChange(version, "keys/none", None).to_json()})
        gateway.wait_version(version)
        return version

    def change(self, version: int, path: str, entry: RouteEntry | None) -> None:
        change = RouteChange(version, path, entry)
        self.client.xadd(ROUTES_DELTAS, {"version": version, "change": change.to_json()})
        self.client.set(ROUTES_VERSION, version)

    def events(self) -> list[UsageEvent]:
        """Every usage event in the stream of a request that began after this object."""
        entries: Any = self.client.xrange(USAGE_STREAM)
        events = [UsageEvent.from_json(fields[b"event"]) for _, fields in entries]
        return [event for event in events if event.started_at >= self.since]

    def wait_events(self, count: int) -> list[UsageEvent]:
        eventually(lambda: len(self.events()) >= count)
        events = self.events()
        assert len(events) == count
        return events


@dataclass(slots=True)
class GatewayProcess:
    """One `python -m gateway`, which `start`, `stop` and `kill` move between life and death."""

    redis_url: str
    wal_dir: Path
    log: Path
    port: int = field(default_factory=free_port)
    environ: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=lambda: [sys.executable, "-m", _PROGRAMS[SERVER]])
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> None:
        self._spawn()
        eventually(lambda: self._answers("/readyz" if ready else "/healthz"))

    def _spawn(self) -> None:
        environ = {
            **os.environ,
            "GRAFTWORK_REDIS_URL": self.redis_url,
            "GRAFTWORK_FLEET_TOKEN": FLEET_TOKEN,
            "GRAFTWORK_GATEWAY_PORT": str(self.port),
            "GRAFTWORK_GATEWAY_ID": "test",
            "GRAFTWORK_WAL_DIR": str(self.wal_dir),
            "GRAFTWORK_CORS_ORIGINS": "http://web.test",
            **self.environ,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=environ, stdout=log, stderr=log)

    def start_unasked(self) -> None:
        """Starts a gateway that `start` could not ask whether it is ready, because it speaks TLS."""
        self._spawn()

    def start_refused(self) -> None:
        """Starts a gateway that must end by itself with an error."""
        self._spawn()
        assert self.process is not None
        assert self.process.wait(60) != 0

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)

    def kill(self) -> None:
        """SIGKILL to the parent: its serving process dies with it, as on a power cut."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        eventually(lambda: not self._answers("/healthz"))

    def wait_version(self, version: int) -> None:
        """Waits until the gateway serves by version `version` of the routes."""
        eventually(lambda: self.routes_version() == version)

    def routes_version(self) -> int:
        """Return the version of the routes in force, 0 without any."""
        return httpx.get(self.url + "/readyz").json()["routes_version"] or 0

    def _answers(self, path: str) -> bool:
        assert self.process is not None
        if self.process.poll() not in (None, -signal.SIGKILL):
            pytest.fail(f"the gateway ended: {self.log.read_text()}")
        try:
            return httpx.get(self.url + path, timeout=2).status_code == 200
        except httpx.TransportError:
            return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under uvicorn, leave out the tests that start no gateway or that test the gateway's own server."""
    if SERVER == "own":
        return
    folder = Path(__file__).parent
    for item in list(items):
        if not isinstance(item, pytest.Function) or not item.path.is_relative_to(folder):
            continue
        name = item.path.relative_to(folder).as_posix() + "::" + item.name
        if _GATEWAYS.isdisjoint(item.fixturenames):
            items.remove(item)
            config.hook.pytest_deselected(items=[item])
        for beginning, reason in _OF_OWN_SERVER.items():
            if name.startswith(beginning):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def control_plane(redis_url: str) -> Iterator[ControlPlane]:
    with redis.Redis.from_url(redis_url) as client:
        yield ControlPlane(client)


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a canned backend in its own process."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.canned_upstream", "--port", str(port)]
    with (tmp_path_factory.mktemp("upstream") / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(url + "/log").status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers)
    yield url
    stop(process)


@pytest.fixture(scope="session")
def gateway_pool(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayPool]:
    """Running gateways by the settings in which they differ from the default."""

    def make(redis_url: str, folder: Path, environ: dict[str, str]) -> GatewayProcess:
        return GatewayProcess(redis_url, folder / "wal", folder / "log", environ=environ)

    pool = GatewayPool(make, redis_server.removesuffix("/0"), tmp_path_factory.mktemp("gateways"))
    yield pool
    pool.close()


@pytest.fixture
def gateway_environ() -> dict[str, str]:
    """Settings of the test's `pooled_gateway`; a module that needs other ones overrides this."""
    return {}


@pytest.fixture
def pooled_gateway(gateway_pool: GatewayPool, gateway_environ: dict[str, str]) -> GatewayProcess:
    """A running gateway with the routes of an earlier test: `ControlPlane.replace` gives it new ones."""
    return gateway_pool(gateway_environ)


@pytest.fixture
def redis_url(redis_server: str, request: pytest.FixtureRequest) -> str:
    """An emptied database: the one of the test's pooled gateway, where the test has one."""
    url = redis_server
    for name in request.fixturenames:
        if name == "pooled_gateway":
            url = request.getfixturevalue(name).redis_url
        elif name == "lasting_redis":
            url = request.getfixturevalue(name)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def gateway(pooled_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> GatewayProcess:
    """A running gateway that knows `route_table(upstream)`; tests that end it use `own_gateway`."""
    control_plane.replace(pooled_gateway, route_table(upstream))
    return pooled_gateway


@pytest.fixture
def own_gateway(redis_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway of this test's own, not started yet."""
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "log")
    yield gateway
    gateway.stop()
