"""The same requests through a real gateway process, in real time, over simulated servers on ports."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import redis

from benchmarks.gateway.targets import disk
from benchmarks.processes import accepts, free_port, start, start_valkey, status_of, wait_until
from benchmarks.routing.engine import EngineShape
from benchmarks.routing.experiment import WARM_SHARE, Result
from benchmarks.routing.gateways import SERVED, Outcome, base_route
from benchmarks.routing.workload import TENANT, Request, adapter_name
from contracts.adapters.reference import AdapterRef
from contracts.keys import KeyRoute
from contracts.redis_names import ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import AdapterRoute, RouteTable, TenantRoute

_KEY: Final = "gw_bench_secret"


def measure(refs: Sequence[AdapterRef], requests: Sequence[Request], *, servers: int) -> Result:
    """Send every request at its time, and return the figures of those after the warm-up.

    Raises:
        RuntimeError: an answer was not a 200, or had no token.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk())))
        ports = [free_port() for _ in range(servers)]
        start(stack, [sys.executable, "-m", "benchmarks.routing.http_servers", *map(str, ports)])
        for port in ports:
            wait_until(partial(accepts, port), name="the simulated servers")
        gateway = _start_gateway(stack, folder, refs, ports)
        return asyncio.run(_send_all(gateway, ports, requests))


def _start_gateway(
    stack: contextlib.ExitStack, folder: Path, refs: Sequence[AdapterRef], ports: Sequence[int]
) -> str:
    """Start Redis and the gateway with these servers and adapters; return the gateway's URL."""
    (folder / "valkey").mkdir()
    valkey, port = start_valkey(stack, folder / "valkey"), free_port()
    urls = [f"http://127.0.0.1:{each}" for each in ports]
    table = RouteTable(
        version=1,
        keys={"bench": KeyRoute(TENANT, hashlib.sha256(b"secret").hexdigest())},
        tenants={TENANT: TenantRoute("Bench", "00ff")},
        bases={SERVED: base_route(urls, max_adapters=EngineShape().max_cpu_loras)},
        adapters={TENANT: {adapter_name(ref): AdapterRoute(SERVED, 1, {1: ref}) for ref in refs}},
    )
    with redis.Redis(port=valkey) as client:
        client.set(ROUTES_SNAPSHOT, table.snapshot())
        client.set(ROUTES_VERSION, table.version)
    environ = os.environ | {
        "GRAFTWORK_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "GRAFTWORK_FLEET_TOKEN": "fleet",
        "GRAFTWORK_GATEWAY_PORT": str(port),
        "GRAFTWORK_WAL_DIR": str(folder / "wal"),
    }
    start(stack, [sys.executable, "-m", "gateway"], environ)
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: status_of(f"{url}/readyz") == 200, name="the gateway")
    return url


async def _send_all(gateway: str, ports: Sequence[int], requests: Sequence[Request]) -> Result:
    loop, warm = asyncio.get_running_loop(), int(WARM_SHARE * len(requests))
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        began, loads_before = loop.time(), 0
        calls: list[asyncio.Task[Outcome]] = []
        for index, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began + request.at - loop.time()))
            if index == warm:
                loads_before = await _disk_loads(session, ports)
            calls.append(loop.create_task(_send(session, gateway, request)))
        outcomes = await asyncio.gather(*calls)
        late = loop.time() - began - requests[-1].at
        return Result(outcomes[warm:], await _disk_loads(session, ports) - loads_before, late)


async def _send(session: aiohttp.ClientSession, gateway: str, request: Request) -> Outcome:
    loop = asyncio.get_running_loop()
    body = {
        "model": adapter_name(request.adapter),
        "prompt": f"{request.adapter.name}{' x' * (request.prompt - 1)}",
        "max_tokens": request.answer,
        "ignore_eos": True,
        "stream": True,
    }
    started, ttft = loop.time(), 0.0
    headers = {"authorization": f"Bearer {_KEY}"}
    async with session.post(f"{gateway}/v1/completions", json=body, headers=headers) as answer:
        async for line in answer.content:
            if not ttft and line.startswith(b"data: {"):
                ttft = loop.time() - started
        if answer.status != 200 or not ttft:
            raise RuntimeError(f"the gateway answered {answer.status} without a token")
    # The gateway does not say whether a request waited for its adapter.
    return Outcome(request.at, ttft, loaded=False)


async def _disk_loads(session: aiohttp.ClientSession, ports: Sequence[int]) -> int:
    total = 0
    for port in ports:
        async with session.get(f"http://127.0.0.1:{port}/disk_loads") as answer:
            total += int(await answer.json())
    return total
