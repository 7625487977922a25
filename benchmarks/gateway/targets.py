"""The measured targets: the backend itself, the ceiling, and our gateway with every feature on."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import redis

from benchmarks.processes import (
    ROOT,
    accepts,
    cpu_ticks,
    family,
    free_port,
    memory_mib,
    start,
    start_valkey,
    status_of,
    wait_until,
)
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyRoute
from contracts.limits import Limit, LimitsRoute, RateRoute, budget_key, budget_period
from contracts.redis_names import ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import RouteTable, TenantRoute
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


@dataclass(frozen=True, slots=True)
class Target:
    """Something to put load on.

    Attributes:
        pid: of the parent of all its processes.
        headers: what it needs on each request besides the key.
        streams: it passes this backend's streams on.
    """

    url: str
    pid: int
    headers: Mapping[str, str] = field(default_factory=dict)
    streams: bool = True

    def cpu_seconds(self) -> float:
        """Return user and system time of its processes so far."""
        return sum(map(cpu_ticks, family(self.pid))) / os.sysconf("SC_CLK_TCK")

    def resident_mib(self) -> float:
        """Return the memory of its processes, in which shared pages count once."""
        return sum(memory_mib(pid, "Pss", "smaps_rollup") for pid in family(self.pid))


def disk() -> Path:
    """Return a folder on a real disk: on a memory file system a synchronous write costs nothing."""
    folder = ROOT / "var" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def memory_disk() -> Path | None:
    """Return a folder on a memory file system, to measure the disk's share; None where there is none."""
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) else None


def serve(stack: contextlib.ExitStack, module: str, *options: str) -> Target:
    """Start `python -m module --port N` with these options, and wait until it accepts connections."""
    port = free_port()
    process = start(stack, [sys.executable, "-m", module, "--port", str(port), *options])
    wait_until(partial(accepts, port), name=module)
    return Target(f"http://127.0.0.1:{port}", process.pid)


def direct(stack: contextlib.ExitStack) -> Target:
    """Start the backend, which answers immediately."""
    return serve(stack, "benchmarks.instant_upstream")


def passthrough(stack: contextlib.ExitStack, upstream: str, *, own_server: bool = False) -> Target:
    """Start the ceiling: a pass-through under granian or, with `own_server`, the gateway's server."""
    flags = ["--own-server"] if own_server else []
    return serve(stack, "benchmarks.passthrough", "--upstream", upstream, *flags)


def gateway(stack: contextlib.ExitStack, folder: Path, upstream: str) -> Target:
    """Start our gateway: key check, every limit on tenant and key, prices, durable metering, metrics."""
    (folder / "valkey").mkdir()
    valkey, port = start_valkey(stack, folder / "valkey"), free_port()
    (folder / "valkey.port").write_text(str(valkey))
    _publish(valkey, upstream)
    environ = os.environ | {
        "GRAFTWORK_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "GRAFTWORK_FLEET_TOKEN": "fleet",
        "GRAFTWORK_GATEWAY_PORT": str(port),
        "GRAFTWORK_GATEWAY_ID": "bench",
        "GRAFTWORK_WAL_DIR": str(folder / "wal"),
    }
    process = start(stack, [sys.executable, "-m", "gateway"], environ)
    target = Target(f"http://127.0.0.1:{port}", process.pid)
    wait_until(lambda: status_of(f"{target.url}/readyz") == 200, name="the gateway")
    return target


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
        client.set(ROUTES_SNAPSHOT, table.snapshot())
        client.set(ROUTES_VERSION, table.version)
        # Backdate the data's epoch, so that limits are granted from the first request.
        client.hset(EPOCH, mapping={"id": "bench", "until": 0})
        for scope in table.limits:
            client.hset(budget_key(scope, month), mapping={"base": 0, "cut": 1})
