"""Gateway processes in virtual time: the product's routing, loading and load reports over simulated servers.

`gateway.routing.fleet.Fleet` chooses the copy, `OpenAIHttpBackend` sends the request and has the server
load what it lacks, `AdapterLoads` bounds what stays loaded, and `of_vllm` reads the servers' reports.
Only the transport is replaced, by calls of the simulated servers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.routing.engine import Job
from benchmarks.routing.server import Answer, SimulatedServer
from benchmarks.routing.workload import Request
from contracts.base_routes import BaseRoute, CopyRoute
from gateway.api.schema import COMPLETIONS, Call
from gateway.api.sse import UsageView
from gateway.backends.base import BackendRequest
from gateway.backends.openai_http import OpenAIHttpBackend
from gateway.backends.upstream import Refusal, Upstream
from gateway.routing import Resolution
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.fleet import Fleet, Report
from gateway.routing.load_reports import of_vllm
from gateway.routing.poller import INTERVAL_SECONDS
from gateway.routing.prefix import prompt_prefix

SERVED = "base"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request.

    Attributes:
        ttft: seconds from its arrival to its first token.
        loaded: True if it waited until its adapter was read from disk.
    """

    at: float
    ttft: float
    loaded: bool


class SimulatedGateway:
    """One gateway process.

    Args:
        knows_slots: False to hide from routing how many adapters fit into a batch.
    """

    def __init__(
        self,
        fleet: Fleet,
        route: BaseRoute,
        servers: Mapping[str, SimulatedServer],
        *,
        knows_slots: bool = True,
    ) -> None:
        self._fleet, self._route, self._servers = fleet, route, servers
        self._knows_slots = knows_slots
        self._upstream = SimulatedUpstream(servers)
        self._backend = OpenAIHttpBackend(self._upstream, CopyHeaders("", ""), fleet)
        self._numbers = itertools.count()

    async def poll(self, delay: float) -> None:
        """Read every server's report once an interval, for ever, as `LoadPoller` does."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(delay)
        while True:
            for copy in self._route.copies:
                known, server = self._fleet.copy(copy.id), self._servers[copy.url]
                load = of_vllm(server.get("/metrics").body, server.get("/v1/models").body)
                known.listed(load.names or frozenset(), load.busy)
                slots = load.slots if self._knows_slots else None
                busy = load.busy.difference(known.active)
                known.report = Report(load.pending, load.adapters, loop.time(), known.in_flight, slots, busy)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def serve(self, request: Request) -> Outcome:
        """Serve one request to its end."""
        text = f"{request.adapter.name}{' x' * (request.prompt - 1)}"
        parameters = {"prompt": text, "max_tokens": request.answer, "ignore_eos": True}
        call = Call(COMPLETIONS, request.adapter.name, True, UsageView.HIDDEN, parameters)
        resolution = Resolution(SERVED, self._route, request.adapter, request.adapter.name)
        copy = self._fleet.choose(resolution.copies, request.adapter, lambda: prompt_prefix(parameters, "00"))
        if copy is None:
            raise RuntimeError("no copy accepts a request, although none has failed")
        slot, number = self._fleet.acquire(copy, request.adapter), str(next(self._numbers))
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            stream = await self._backend.stream(BackendRequest(call, resolution, copy, number, "00", "bench"))
            await stream.read()
            ttft = loop.time() - started
            while await stream.read():
                pass
            slot.succeeded()
        finally:
            slot.release()
        loaded = number in self._upstream.refused
        self._upstream.refused.discard(number)
        return Outcome(request.at, ttft, loaded)


class SimulatedStream:
    """A completion of a simulated server: bytes with the first token, bytes with the last, then the end."""

    def __init__(self, job: Job | None, body: bytes) -> None:
        self._futures = [] if job is None else [job.started, job.ended]
        self._body = body

    async def read(self) -> bytes:
        if self._futures:
            await self._futures.pop(0)
            return b"data: {}\n\n"
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        self._futures = []


class SimulatedUpstream(Upstream):
    """Calls simulated servers by URL.

    Attributes:
        refused: ids of requests whose adapter the server did not have.
    """

    def __init__(self, servers: Mapping[str, SimulatedServer]) -> None:
        self._servers = servers
        self.refused: set[str] = set()

    async def open(  # type: ignore[override]
        self, url: str, data: bytes, headers: Mapping[str, str], *, stream: bool
    ) -> SimulatedStream | Refusal:
        server, _, path = url.removeprefix("sim://").partition("/")
        body: dict[str, Any] = orjson.loads(data)
        answer: Answer = await self._servers[f"sim://{server}"].post(f"/{path}", body)
        if answer.status == 200:
            return SimulatedStream(answer.job, answer.body)
        if answer.status == 404 and "x-request-id" in headers:
            self.refused.add(headers["x-request-id"])
        return Refusal(answer.status, answer.body, {})

    async def close(self) -> None:
        """Close nothing."""


def base_route(urls: Sequence[str], *, max_adapters: int) -> BaseRoute:
    """Return the route of the base model, as the control plane publishes it for vLLM servers."""
    copies = tuple(
        CopyRoute(
            f"server-{index}",
            "openai_http",
            url,
            loads_adapters=True,
            engine="vLLM 0.32.0",
            max_adapters=max_adapters,
        )
        for index, url in enumerate(urls)
    )
    return BaseRoute(SERVED, 32_768, copies)
