"""Load reports of copies: vLLM's metrics parsed correctly, and polled over real sockets."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web

from contracts.base_routes import CopyRoute
from contracts.route_table import RouteTable
from gateway.errors import RoutesUnavailable
from gateway.routing import poller
from gateway.routing.breaker import FAILURES_IN_A_ROW
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.endpoints import lacking
from gateway.routing.fleet import Copy, Fleet
from gateway.routing.load_reports import of_vllm
from gateway.routing.poller import LoadPoller
from tests.gateway.conftest import route_table
from tests.waiting import eventually_async

ONE, TWO, THREE = (f"t_acme.a_{name}.v1.{digit * 12}" for name, digit in (("x", "a"), ("y", "b"), ("z", "c")))
VLLM = f"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="base"}} 3.0
vllm:num_requests_running{{engine="1",model_name="base"}} 1.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="base"}} 2.0
vllm:num_requests_waiting{{engine="1",model_name="base"}} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="base"}} 99.0
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{{engine="0",max_lora="4",running_lora_adapters="{THREE}",waiting_lora_adapters=""}} 1.7e+09
vllm:lora_requests_info{{engine="0",max_lora="4",running_lora_adapters="{ONE}",waiting_lora_adapters="{TWO},by-hand"}} 1.8e+09
vllm:lora_requests_info{{engine="1",max_lora="4",running_lora_adapters="",waiting_lora_adapters=""}} 1.9e+09
vllm:lora_requests_info{{engine="1",max_lora="4",running_lora_adapters="{THREE}",waiting_lora_adapters=""}} 1.6e+09
"""  # noqa: E501


def test_vllms_metrics() -> None:
    load = of_vllm(VLLM.encode())
    assert (load.pending, load.adapters, load.draining) == (6, frozenset({"a" * 12, "b" * 12}), False)
    assert (load.busy, load.slots) == (frozenset({ONE, TWO, "by-hand"}), 4)
    without = b"vllm:num_requests_running 1.0\nvllm:num_requests_waiting 0.0\n"
    assert (of_vllm(without).pending, of_vllm(without).adapters) == (1, frozenset())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "other_metric 1.0\n",
        "vllm:num_requests_running NaN\n",
        "vllm:num_requests_running 1e300\n",
        "vllm:num_requests_running -1\n",
        "vllm:num_requests_running x\n",
        "# vllm:num_requests_running 1\n",
    ],
)
def test_what_are_not_vllms_metrics(text: str) -> None:
    with pytest.raises(ValueError, match=r"not vLLM's|could not convert"):
        of_vllm(text.encode())


class Feed:
    """A route feed with a fixed table."""

    def __init__(self, table: RouteTable) -> None:
        self._tables = [table]

    def current(self) -> RouteTable:
        if not self._tables:
            raise RoutesUnavailable("over")
        return self._tables[0]


async def polled(
    kind: str, answer: Callable[[web.Request], Awaitable[web.StreamResponse]], *, seconds: float = 0.3
) -> tuple[Copy, list[web.BaseRequest]]:
    """Poll a copy that answers with `answer`; return its state and the requests that it received."""
    asked: list[web.BaseRequest] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request)
        return await answer(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    table = route_table(f"http://127.0.0.1:{runner.addresses[0][1]}", kind=kind)
    fleet = Fleet()
    task = asyncio.create_task(LoadPoller(Feed(table), fleet, CopyHeaders("hush", ""), interval=0.1).run())  # type: ignore[arg-type]
    try:
        for _ in range(100):
            await asyncio.sleep(0.05)
            if asked and fleet.copy("copy-1").report is not None:
                break
            if len(asked) >= 3 or (seconds := seconds - 0.05) <= 0 < len(asked):
                break
    finally:
        task.cancel()
        await runner.cleanup()
    return fleet.copy("copy-1"), asked


async def in_pieces(request: web.BaseRequest, text: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": str(len(text))})
    await response.prepare(request)
    for start in range(0, len(text), 1 + len(text) // 3):
        await response.write(text[start : start + 1 + len(text) // 3].encode())
        await asyncio.sleep(0.02)
    return response


def test_a_vllm_server_is_asked_without_any_secret() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return await in_pieces(request, VLLM)

    copy, asked = asyncio.run(polled("openai_http", answer))
    assert copy.load == 6
    assert copy.report is not None
    assert (copy.report.slots, copy.report.busy) == (4, frozenset({ONE, TWO, "by-hand"}))
    assert copy.holds("a" * 12)
    assert not copy.holds("c" * 12)
    assert {request.path for request in asked} <= {"/metrics", "/health", "/openapi.json"}
    assert "authorization" not in asked[0].headers


def test_a_worker_may_answer_in_several_packets() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        adapters = ",".join(f'"{number:012x}"' for number in range(2000))
        return await in_pieces(request, f'{{"status": "ok", "pending": 5, "adapters": [{adapters}]}}')

    copy, asked = asyncio.run(polled("worker", answer))
    assert copy.load == 5
    assert copy.holds(f"{1999:012x}")
    assert asked[0].headers["authorization"] == "Bearer hush"


@pytest.mark.parametrize("status", [200, 404])
def test_a_server_that_does_not_tell_is_left_alone(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, text="hello")

    copy, asked = asyncio.run(polled("openai_http", answer, seconds=0.5))
    assert copy.report is None
    assert len(asked) == 1
    monkeypatch.setattr(poller, "_SILENT_SECONDS", 0.1)
    assert len(asyncio.run(polled("openai_http", answer, seconds=5))[1]) == 3


def test_more_than_a_server_has_to_say_is_not_read() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=VLLM + "#" * (1 << 20))

    copy, _ = asyncio.run(polled("openai_http", answer))
    assert copy.report is None


def test_a_restarted_server_is_known_within_a_poll_and_has_lost_its_adapters() -> None:
    """vLLM is killed and started again at its port: the breaker does not make it wait."""
    name = "t_acme.a_bot.v1." + "d" * 12
    listed = [name]

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics":
            return web.Response(text=VLLM)
        return web.json_response({"data": [{"id": "base"}, *({"id": each} for each in listed)]})

    async def started(port: int) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    async def work() -> None:
        runner = await started(0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        table = route_table(url, kind="openai_http")
        base = table.bases["base"]
        copies = tuple(replace(copy, loads_adapters=True) for copy in base.copies)
        table = replace(table, bases={"base": replace(base, copies=copies)})
        fleet = Fleet()
        poller = LoadPoller(Feed(table), fleet, CopyHeaders("hush", ""), interval=0.1)  # type: ignore[arg-type]
        task = asyncio.create_task(poller.run())
        copy = fleet.copy("copy-1")
        try:
            await eventually_async(lambda: name in copy.names)
            assert copy.holds("d" * 12), "idle, and so not in the metrics"
            await runner.cleanup()
            await eventually_async(lambda: copy.report is None)
            for _ in range(FAILURES_IN_A_ROW):
                copy.breaker.fail(probe=copy.breaker.begin())
            copy.breaker._open_until = math.inf
            assert not copy.ready
            assert copy.names == frozenset()
            listed.clear()
            runner = await started(runner_port(url))
            await eventually_async(lambda: copy.ready)
            assert not copy.holds("d" * 12)
        finally:
            task.cancel()
            await runner.cleanup()

    asyncio.run(work())


@pytest.mark.parametrize("health", [200, 404, 502, 503])
def test_a_slow_metrics_page_is_no_absence_and_a_dead_engine_is(
    health: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page hangs: the server's health decides whether it is away, and whether its engine lives."""
    monkeypatch.setattr(poller, "ANSWER_SECONDS", 0.1)
    metrics, polls = [VLLM], 0

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal polls
        if request.path == "/health":
            polls += 1
            return web.Response(status=health if not metrics else 200)
        if request.path == "/metrics" and not metrics:
            await asyncio.Event().wait()
        return web.Response(text=VLLM)

    async def work() -> None:
        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        table = route_table(f"http://127.0.0.1:{runner.addresses[0][1]}", kind="openai_http")
        fleet = Fleet()
        loads = LoadPoller(Feed(table), fleet, CopyHeaders("hush", ""), interval=0.1)  # type: ignore[arg-type]
        task = asyncio.create_task(loads.run())
        copy = fleet.copy("copy-1")
        try:
            await eventually_async(lambda: copy.report is not None)
            copy.loaded(ONE)
            metrics.clear()
            before = polls
            await eventually_async(lambda: polls >= before + 3)
            assert copy.ready is (health < 500)
            assert copy.names == (set() if health == 502 else {ONE}), "behind a proxy the server is gone"
            assert "copy-1" not in loads._away
            assert copy.holds("a" * 12) or health == 502, "the last report holds for its time"
            metrics.append(VLLM)
            await eventually_async(lambda: copy.ready)
        finally:
            task.cancel()
            await runner.cleanup()

    asyncio.run(work())


def test_a_copy_that_hangs_delays_no_other_copys_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "ANSWER_SECONDS", 60.0)
    asked: Counter[str] = Counter()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        asked[request.path] += 1
        if request.path == "/slow/metrics":
            await asyncio.Event().wait()
        return web.Response(text=VLLM)

    async def work() -> None:
        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        table = route_table(f"{url}/slow", f"{url}/fast", kind="openai_http")
        loads = LoadPoller(Feed(table), Fleet(), CopyHeaders("hush", ""), interval=0.1)  # type: ignore[arg-type]
        task = asyncio.create_task(loads.run())
        try:
            await eventually_async(lambda: asked["/fast/metrics"] >= 3)
        finally:
            task.cancel()
            await runner.cleanup()
        assert asked["/slow/metrics"] == 1, "the poll that hangs is not repeated beside itself"

    asyncio.run(work())


def test_the_paths_of_a_server_are_read_once_in_its_life() -> None:
    asked = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path)
        if request.path == "/openapi.json":
            return web.json_response({"paths": {"/v1/models": {}, "/v2/rerank": {}}})
        return web.Response(text=VLLM)

    async def work() -> None:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        table = route_table(f"http://127.0.0.1:{runner.addresses[0][1]}", kind="openai_http")
        copies, fleet = table.bases["base"].copies, Fleet()
        assert lacking(copies, "/v1/score", fleet) == frozenset(), "nothing is known yet"
        loads = LoadPoller(Feed(table), fleet, CopyHeaders("hush", ""), interval=0.1)  # type: ignore[arg-type]
        task = asyncio.create_task(loads.run())
        try:
            await eventually_async(lambda: asked.count("/metrics") >= 3)
        finally:
            task.cancel()
            await runner.cleanup()
        assert asked.count("/openapi.json") == 1
        assert lacking(copies, "/v1/score", fleet) == {"copy-1"}
        assert lacking(copies, "/v1/rerank", fleet) == frozenset()
        fleet.copy("copy-1").restarted()
        assert lacking(copies, "/v1/score", fleet) == frozenset(), "another server may have its place"

    asyncio.run(work())


def test_what_a_server_lacks_by_its_version_and_by_its_answers() -> None:
    now = 0.0
    fleet = Fleet(clock=lambda: now)
    old = CopyRoute("old", "openai_http", "http://old", engine="vLLM 0.8.5")
    new = CopyRoute("new", "openai_http", "http://new", engine="vLLM 0.32.0")
    assert lacking((old, new), "/v1/classify", fleet) == {"old"}
    assert lacking((old, new), "/v1/score", fleet) == frozenset()
    fleet.copy("new").refused_path("/v1/score", seconds=30)
    assert lacking((old, new), "/v1/score", fleet) == {"new"}
    now = 31.0
    assert lacking((old, new), "/v1/score", fleet) == frozenset()
    fleet.copy("new").refused_path("/v1/score", seconds=30)
    fleet.keep({"old"})
    assert lacking((old, new), "/v1/score", fleet) == frozenset(), "it is forgotten with its copy"


def runner_port(url: str) -> int:
    return int(url.rpartition(":")[2])
