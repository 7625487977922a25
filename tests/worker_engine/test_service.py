"""Streams end, whatever happens to the engine's thread: no request waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from contracts.adapters.reference import AdapterRef
from tests.waiting import eventually_async
from tests.worker_engine.conftest import request
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.adapter import Adapter
from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.errors import (
    DeadlineExceeded,
    GenerationFailed,
    GenerationTimedOut,
    TooManyRequests,
    Unavailable,
)
from worker_engine.protocol import GenerateRequest, Origin, TokenDelta
from worker_engine.service import Service

pytestmark = pytest.mark.costly("breaks and restarts engines")

Scenario = Callable[[Service], Awaitable[None]]


class Serve(Protocol):
    """Runs a scenario on a started service of two rows, with any of EngineConfig's fields changed."""

    def __call__(self, scenario: Scenario, **changes: Any) -> None: ...


@pytest.fixture
def serve(tiny_model: Path, tmp_path: Path) -> Serve:
    """Runs a scenario on a started service and stops it."""

    def run(scenario: Scenario, **changes: Any) -> None:
        async def main() -> None:
            values: dict[str, Any] = {
                "device": "cpu",
                "memory_gib": 0.01,
                "max_num_seqs": 2,
                "max_waiting": 1,
                "adapter_cache_dir": tmp_path / "cache",
                "num_threads": 1,
            }
            config = EngineConfig(tiny_model, "tiny", **(values | changes))
            service = Service(config)
            service.start()
            try:
                await asyncio.wait_for(scenario(service), 20)
            finally:
                await asyncio.to_thread(service.stop)

        asyncio.run(main())

    return run


def long(name: str = "x", adapter: AdapterRef | None = None) -> GenerateRequest:
    plain = request(name, [1, 2, 3], 400)
    return GenerateRequest(name, plain.prompt_token_ids, plain.sampling, adapter)


def short(name: str) -> GenerateRequest:
    return request(name, [1, 2, 3], 5)


async def texts(deltas: AsyncGenerator[TokenDelta, None]) -> list[int]:
    return [token for item in [delta async for delta in deltas] for token in item.token_ids]


async def count(deltas: AsyncGenerator[TokenDelta, None]) -> int:
    return sum([1 async for _ in deltas])


def test_stop_ends_running_streams(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        streams = [asyncio.create_task(count(service.generate(long()))) for _ in range(2)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(service.stop)
        for result in await asyncio.gather(*streams, return_exceptions=True):
            assert isinstance(result, GenerationFailed)
            assert "stopping" in str(result)
        assert not service.healthy
        with pytest.raises(Unavailable):
            await count(service.generate(long()))
        assert service.num_pending == 0

    serve(scenario)


def test_stop_while_an_adapter_loads(serve: Serve, tiny_adapters: dict[str, Path]) -> None:
    """The request that comes back from the load finds the engine gone and must not wait for it."""

    async def scenario(service: Service) -> None:
        stream = asyncio.create_task(count(service.generate(long("x", adapter_ref(tiny_adapters["all"])))))
        await asyncio.sleep(0)
        service.stop()
        with pytest.raises(Unavailable):
            await stream

    serve(scenario)


def break_engine(service: Service) -> None:
    """A fault that no step survives: the one in charge of failing steps fails too."""

    def broken(*_: object) -> list[TokenDelta]:
        raise RuntimeError("broken")

    service.engine.step = broken  # type: ignore[method-assign]
    service.engine.fail_all = broken  # type: ignore[method-assign,assignment]


def test_a_broken_engine_ends_all_streams_and_starts_again(
    serve: Serve, tiny_adapters: dict[str, Path]
) -> None:
    """Each open request gets an error, health reports it, and the adapters are still loaded afterwards."""

    async def scenario(service: Service) -> None:
        ref = adapter_ref(tiny_adapters["plain"])
        assert await count(service.generate(long("first", ref))) == 400
        expected = await texts(service.generate(short("before")))
        streams = [asyncio.create_task(count(service.generate(long()))) for _ in range(2)]
        await asyncio.sleep(0.05)
        break_engine(service)
        for stream in streams:
            with pytest.raises(GenerationFailed, match="broke"):
                await stream
        assert (service.status, service.healthy) == ("restarting", False)
        with pytest.raises(Unavailable, match="restarting") as refused:
            await count(service.generate(long()))
        assert refused.value.retry_after
        assert service._restart is not None
        await service._restart
        assert service.healthy
        assert service.num_restarts == 1
        assert await texts(service.generate(short("after"))) == expected
        assert service.adapters.num_resident == 1
        assert await count(service.generate(long("again", ref))) == 400

    serve(scenario)


def test_a_lost_device_ends_the_engine_not_just_the_step(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worker would stay healthy and fail every request."""

    def broken(*_: object) -> list[TokenDelta]:
        raise RuntimeError("an illegal memory access was encountered")

    async def scenario(service: Service) -> None:
        monkeypatch.setattr(service.engine, "step", broken)
        monkeypatch.setattr(service.engine, "check_device", broken)
        with pytest.raises(GenerationFailed, match="failed at this step"):
            await count(service.generate(short("before")))
        await eventually_async(lambda: service._restart is not None)
        assert service._restart is not None
        await service._restart
        assert (service.healthy, service.num_restarts) == (True, 1)
        assert await count(service.generate(short("after"))) == 5

    serve(scenario)


def test_an_engine_that_does_not_start_is_tried_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_engine.service.RESTART_DELAYS", (0.0, 0.01))

    async def scenario(service: Service) -> None:
        build, failures = service._build, 2

        def failing() -> Engine:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise MemoryError
            return build()

        monkeypatch.setattr(service, "_build", failing)
        stream = asyncio.create_task(count(service.generate(long())))
        await asyncio.sleep(0.05)
        break_engine(service)
        with pytest.raises(GenerationFailed):
            await stream
        assert service._restart is not None
        await service._restart
        assert service.healthy
        assert failures == -1
        assert await count(service.generate(short("after"))) == 5

    serve(scenario)


def test_a_request_that_cannot_be_taken_in_fails_alone(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        running = asyncio.create_task(count(service.generate(long())))
        await asyncio.sleep(0.05)
        add = service.engine.add_request

        def broken(*arguments: Any, **options: Any) -> None:
            service.engine.add_request = add  # type: ignore[method-assign]
            raise RuntimeError("broken")

        service.engine.add_request = broken  # type: ignore[method-assign]
        with pytest.raises(GenerationFailed, match="take this request in"):
            await count(service.generate(long()))
        assert await running == 400
        assert service.healthy

    serve(scenario)


def test_draining_refuses_and_lets_what_runs_end(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        running = asyncio.create_task(count(service.generate(long())))
        await asyncio.sleep(0.05)
        drain = asyncio.create_task(service.drain(20))
        await asyncio.sleep(0)
        assert service.status == "draining"
        with pytest.raises(Unavailable, match="draining") as refused:
            await count(service.generate(long()))
        assert refused.value.retry_after
        assert not drain.done()
        assert await running == 400
        await asyncio.wait_for(drain, 60)

    serve(scenario)


def test_draining_ends_with_its_time(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        running = asyncio.create_task(count(service.generate(long())))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(service.drain(0.05), 60)
        assert not running.done()
        await asyncio.to_thread(service.stop)
        with pytest.raises(GenerationFailed, match="stopping"):
            await running

    serve(scenario)


def timed(name: str, seconds: float, adapter: AdapterRef | None = None) -> GenerateRequest:
    return replace(long(name, adapter), origin=Origin(timeout=seconds))


def test_a_deadline_in_the_queue_and_one_in_flight(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        running = [asyncio.create_task(count(service.generate(long()))) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(DeadlineExceeded, match="before its first token") as late:
            await count(service.generate(timed("queued", 0.02)))
        assert (late.value.status, late.value.retry_after) == (503, 1)
        await asyncio.gather(*running)
        stream = service.generate(timed("running", 0.1))
        assert (await anext(stream)).completion_tokens == 1
        with pytest.raises(GenerationTimedOut, match="after"):
            await count(stream)
        assert service.engine.pool.num_used == 0
        assert await count(service.generate(timed("in time", 60))) == 400

    serve(scenario)


def test_a_deadline_covers_the_adapters_loading(
    serve: Serve, tiny_adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(service: Service) -> None:
        load, refused = service.adapters._loader.load, threading.Event()

        def slow(ref: AdapterRef) -> Adapter:
            refused.wait(60)
            return load(ref)

        monkeypatch.setattr(service.adapters._loader, "load", slow)
        ref = adapter_ref(tiny_adapters["plain"])
        with pytest.raises(DeadlineExceeded, match="adapter"):
            await count(service.generate(timed("x", 0.05, ref)))
        refused.set()
        assert service.num_pending == 0
        assert await count(service.generate(timed("y", 20, ref))) == 400

    serve(scenario)


def test_one_tenants_queue_is_bounded_and_leaves_room(serve: Serve) -> None:
    """Two rows and no waiting for one tenant: its third request is 429, another tenant's is served."""

    async def scenario(service: Service) -> None:
        flood = [replace(long(), origin=Origin(tenant="flood")) for _ in range(3)]
        tasks = [asyncio.create_task(count(service.generate(item))) for item in flood[:2]]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests) as refused:
            await count(service.generate(flood[2]))
        assert (refused.value.status, bool(refused.value.retry_after)) == (429, True)
        assert await count(service.generate(replace(short("x"), origin=Origin(tenant="light")))) == 5
        assert await asyncio.gather(*tasks) == [400, 400]

    serve(scenario, max_waiting_per_tenant=0)


def test_a_failing_step_ends_its_requests_and_the_next_are_served(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        step = service.engine.step

        def failing() -> list[TokenDelta]:
            service.engine.step = step  # type: ignore[method-assign]
            raise RuntimeError("out of memory")

        service.engine.step = failing  # type: ignore[method-assign]
        with pytest.raises(GenerationFailed, match="may succeed"):
            await count(service.generate(long()))
        assert service.engine.pool.num_used == 0
        assert await count(service.generate(request("y", [1], 5))) == 5

    serve(scenario)


def test_the_queue_is_bounded(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        accepted = [service.generate(long()) for _ in range(3)]
        tasks = [asyncio.create_task(count(stream)) for stream in accepted]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="full") as refused:
            await anext(service.generate(long()))
        assert refused.value.retry_after
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert service.num_pending == 0
        assert await count(service.generate(request("y", [1], 5))) == 5

    serve(scenario)


def test_hanging_up_while_waiting_leaves_nothing_behind(serve: Serve) -> None:
    async def scenario(service: Service) -> None:
        streams = [service.generate(long(str(index))) for index in range(3)]
        running = [await anext(stream) for stream in streams[:2]]
        assert len(running) == 2
        waiting = asyncio.create_task(anext(streams[2]))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for stream in streams[:2]:
            await stream.aclose()
        await asyncio.to_thread(service.stop)
        assert service.engine.idle
        assert service.engine.pool.num_used == 0
        assert service.num_pending == 0

    serve(scenario)
