"""The measured targets: the backend itself, the ceiling, and our gateway with every feature on."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Final

import redis

from benchmarks.gateway.processes import Target, free_port, spawn, start, until, wait
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyRoute
from contracts.limits import Limit, LimitsRoute, RateRoute, budget_key, budget_period
from contracts.redis_names import ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import RouteTable, TenantRoute
from demo.valkey import server_command
from gateway.admission.script import EPOCH

KEY: Final = "gw_bench_secret"
_MESSAGES: Final = [{"role": "user", "content": "Say what you can do in 64 words."}]
PLAIN: Final = json.dumps({"model": "base", "messages": _MESSAGES}).encode()
STREAM: Final = json.dumps({"model": "base", "messages": _MESSAGES, "stream": True}).encode()
_LIMITS: Final = (
    Limit("requests", 10**9),
    Limit("tokens", 10**12),
    Limit("concurrency", 10**5),
    Limit("budget", 10**17),
)
"""Limits that are never reached, since the cost of enforcing them is measured."""


def direct(stack: contextlib.ExitStack) -> Target:
    """Start the backend, which answers immediately."""
    port = free_port()
    pid = spawn(stack, "benchmarks.instant_upstream", "--port", str(port))
    return Target(wait(f"http://127.0.0.1:{port}"), pid)


def passthrough(stack: contextlib.ExitStack, upstream: str, *, own_server: bool = False) -> Target:
    """Start the ceiling: a pass-through under granian or, with `own_server`, the gateway's server."""
    port = free_port()
    flags = ["--own-server"] if own_server else []
    pid = spawn(stack, "benchmarks.passthrough", "--port", str(port), "--upstream", upstream, *flags)
    return Target(wait(f"http://127.0.0.1:{port}"), pid)


def gateway(stack: contextlib.ExitStack, folder: Path, upstream: str) -> Target:
    """Start our gateway: key check, every limit on tenant and key, prices, durable metering, metrics."""
    valkey, port = free_port(), free_port()
    (folder / "valkey").mkdir()
    (folder / "valkey.port").write_text(str(valkey))
    start(stack, server_command(port=valkey, folder=folder / "valkey"), {})
    _publish(valkey, upstream)
    environ = {
        "GRAFTWORK_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "GRAFTWORK_FLEET_TOKEN": "fleet",
        "GRAFTWORK_GATEWAY_PORT": str(port),
        "GRAFTWORK_GATEWAY_ID": "bench",
        "GRAFTWORK_WAL_DIR": str(folder / "wal"),
    }
    pid = spawn(stack, "gateway", environ=environ)
    return Target(wait(f"http://127.0.0.1:{port}", "/readyz"), pid)


def valkey_port(folder: Path) -> int:
    """Return the port of the Redis-like server that `gateway` started with this folder."""
    return int((folder / "valkey.port").read_text())


def _publish(valkey: int, upstream: str) -> None:
    table = RouteTable(
        version=1,
        keys={"bench": KeyRoute("acme", hashlib.sha256(b"secret").hexdigest())},
        tenants={"acme": TenantRoute("Acme", "00ff")},
        bases={"base": BaseRoute("base", 2048, (CopyRoute("copy", "worker", upstream),))},
        limits={scope: LimitsRoute(_LIMITS) for scope in ("tenant:acme", "key:bench")},
        rates={"base": RateRoute(150, 15, 600)},
    )
    month = budget_period("month", dt.datetime.now(dt.UTC))[0]
    with redis.Redis(port=valkey) as client:
        until(lambda: _publishes(client, table))
        # Backdate the data's epoch, so that limits are granted from the first request.
        client.hset(EPOCH, mapping={"id": "bench", "until": 0})
        for scope in table.limits:
            client.hset(budget_key(scope, month), mapping={"base": 0, "cut": 1})


def _publishes(client: redis.Redis, table: RouteTable) -> bool:
    try:
        client.set(ROUTES_SNAPSHOT, table.snapshot())
        client.set(ROUTES_VERSION, table.version)
    except redis.exceptions.ConnectionError:
        return False
    return True
