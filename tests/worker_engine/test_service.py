"""Streams end, whatever happens to the engine's thread: no request waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.worker_engine.conftest import adapter_ref, request
from worker_engine.adapter_loader import Adapter
from worker_engine.config import EngineConfig
from worker_engine.errors import GenerationFailed, Unavailable
from worker_engine.protocol import AdapterRef, GenerateRequest, TokenDelta
from worker_engine.service import Service

Scenario = Callable[[Service], Awaitable[None]]


@pytest.fixture
def serve(tiny_model: Path, tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario on a started service and stops it."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            config = EngineConfig(
                tiny_model, "tiny", device="cpu", memory_gib=0.01, max_num_seqs=2, max_waiting=1,
                adapter_cache_dir=tmp_path / "cache", num_threads=1,
            )  # fmt: skip
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


async def count(deltas: AsyncGenerator[TokenDelta, None]) -> int:
    return sum([1 async for _ in deltas])


def test_stop_ends_running_streams(serve: Callable[[Scenario], None]) -> None:
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


def test_stop_while_an_adapter_loads(
    serve: Callable[[Scenario], None], tiny_adapters: dict[str, Path]
) -> None:
    """The request that comes back from the load finds the engine gone and must not wait for it."""

    async def scenario(service: Service) -> None:
        stream = asyncio.create_task(count(service.generate(long("x", adapter_ref(tiny_adapters["all"])))))
        await asyncio.sleep(0)
        service.stop()
        with pytest.raises(Unavailable):
            await stream

    serve(scenario)


def test_a_broken_engine_ends_all_streams(serve: Callable[[Scenario], None]) -> None:
    """A fault outside a step, here in taking a request in, is told to all and shows in the health."""

    async def scenario(service: Service) -> None:
        running = asyncio.create_task(count(service.generate(long())))
        await asyncio.sleep(0.05)

        def broken(request: GenerateRequest, adapter: Adapter | None) -> None:
            raise RuntimeError("broken")

        service.engine.add_request = broken  # type: ignore[method-assign,assignment]
        for stream in (asyncio.create_task(count(service.generate(long()))), running):
            with pytest.raises(GenerationFailed, match="broke"):
                await stream
        assert not service.healthy

    serve(scenario)


def test_a_failing_step_ends_its_requests_and_the_next_are_served(
    serve: Callable[[Scenario], None],
) -> None:
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


def test_the_queue_is_bounded(serve: Callable[[Scenario], None]) -> None:
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


def test_hanging_up_while_waiting_leaves_nothing_behind(serve: Callable[[Scenario], None]) -> None:
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
