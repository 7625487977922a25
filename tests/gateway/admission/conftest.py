"""Processes' parts of admission, in this process: each `Gate` is what one gateway process would hold."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from contracts.route_table import RouteTable
from demo.valkey import server_command
from gateway.admission import Admission, Broker, Plan, Ticket
from gateway.admission.script import EPOCH
from gateway.errors import GatewayError
from gateway.routing import Caller
from tests.conftest import free_port, stop
from tests.gateway.admission.drawer import admission, table

CALLER = Caller("k", "acme", "p")


async def until(state: Callable[[], Any]) -> None:
    """Wait until `state` is true; fail when it hangs."""
    async with asyncio.timeout(60):
        while not state():  # noqa: ASYNC110 - a broker's state has no event to wait on
            await asyncio.sleep(0.01)


@dataclass
class Gate:
    """One process's admission; `drawing` is its broker at work."""

    admission: Admission
    broker: Broker
    routes: RouteTable
    drawing: asyncio.Task[None]

    @property
    def plan(self) -> Plan:
        return self.admission.plan(self.routes, CALLER, "base", "base")

    async def admit(self, prompt: int = 1, completion: int = 0) -> Ticket:
        return await self.admission.admit(self.plan, prompt, completion)

    async def admitted(self, count: int, tokens: int = 1) -> int:
        """Send `count` requests; return the number admitted."""
        came = 0
        for _ in range(count):
            with contextlib.suppress(GatewayError):
                ticket = await self.admit(tokens)
                ticket.count(tokens, 0, 0)
                ticket.settle()
                came += 1
        return came

    async def draw(self) -> None:
        """Goes on after `drawing` was cancelled; returns when Redis has answered."""
        self.drawing = asyncio.create_task(self.broker.run())
        heard = self.broker.dead_at
        await until(lambda: self.broker.dead_at > heard)

    async def until_gateways(self, count: int) -> None:
        """Waits until the broker knows of so many processes."""
        await until(lambda: self.broker.gateways == count)

    async def until(self, away: bool) -> None:
        """Waits until the broker has noticed that Redis is away, or back."""
        await until(lambda: self.broker.away is away)


@contextlib.asynccontextmanager
async def gate(
    url: str, slot: str, limits: list[dict[str, Any]], *, queue: float = 0.0
) -> AsyncIterator[Gate]:
    """A process that has greeted Redis."""
    limiter, broker, client = admission(url, slot, queue=queue)
    task = asyncio.create_task(broker.run())
    running = Gate(limiter, broker, table(limits), task)
    try:
        await running.until(False)
        yield running
    finally:
        running.drawing.cancel()
        await broker.close()
        await client.aclose()


@dataclass
class Valkey:
    """A server that a test may stop, start and empty."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *, old: bool = True) -> None:
        """With `old`, the data's life began long ago: no quarantine."""
        with (self.folder / "log").open("ab") as log:
            command = server_command(port=self.port, folder=self.folder)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        client = redis.Redis(port=self.port)
        for _ in range(200):
            with contextlib.suppress(redis.exceptions.RedisError):
                client.ping()
                break
            time.sleep(0.05)
        if old and not client.exists(EPOCH):
            client.hset(EPOCH, mapping={"id": "life", "until": "0"})
        client.close()

    def stop(self, *, lose: bool = False) -> None:
        """Stop the server; delete its data on request."""
        assert self.process is not None
        stop(self.process)
        if lose:
            for path in sorted(self.folder.rglob("*"), reverse=True):
                if path.is_file() and path.name != "log":
                    path.unlink()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    server.start()
    yield server
    server.stop()
