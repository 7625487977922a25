"""Between HTTP and the engine's thread: adapters acquired, requests numbered, deltas handed out."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import torch

from worker_engine.adapter_loader import AdapterLoader
from worker_engine.adapter_pool import AdapterPool
from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.engine_thread import EngineThread
from worker_engine.errors import GenerationFailed, Unavailable
from worker_engine.model_runner import choose_device, choose_dtype
from worker_engine.models import load_config
from worker_engine.protocol import FinishReason, GenerateRequest, TokenDelta
from worker_engine.tokenizer import ChatTokenizer


class Service:
    """The model as coroutines see it. Create it, then `start()` on the event loop that serves."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads tokenizer and checkpoint. Raises ConfigError, CheckpointError."""
        self.config = config
        self.model = load_config(config.model)
        self.tokenizer = ChatTokenizer(config.model)
        device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, self.model, device)
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        self.engine = Engine(config, self.model, self.tokenizer, dtype=dtype, device=device)
        loader = AdapterLoader(
            self.model,
            config.adapter_cache_dir,
            max_bytes=config.max_adapter_mib << 20,
            dtype=dtype,
            device=device,
            s3_endpoint_url=config.s3_endpoint_url,
        )
        self.adapters = AdapterPool(loader, max_bytes=int(config.adapter_cache_gib * 2**30))
        self._thread = EngineThread(self.engine, self._publish, self._publish_end)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, asyncio.Queue[TokenDelta]] = {}
        self._numbers = itertools.count()
        self._pending = 0
        self._stopping = self._ended = False

    @property
    def healthy(self) -> bool:
        return self._thread.alive and not self._stopping and not self._ended

    @property
    def num_pending(self) -> int:
        """Requests accepted and not finished."""
        return self._pending

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Ends the engine's thread, from any thread; streams that still run end with an error.

        Blocks for the step in progress.
        """
        self._stopping = True
        self._thread.stop()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Deltas until one carries a finish reason. Closing the iterator early stops the generation.

        Raises:
            Unavailable: the queue is full or the worker stops.
            AdapterUnavailable, AdapterRefused: as `AdapterPool.acquire`, before the first delta.
            GenerationFailed: the engine gave up on this request.
        """
        arrived = time.monotonic()
        if self._pending >= self.config.max_num_seqs + self.config.max_waiting:
            raise Unavailable("the worker's queue is full")
        self._pending += 1
        try:
            async with AsyncExitStack() as stack:
                adapter = None
                if request.adapter is not None:
                    adapter = await stack.enter_async_context(self.adapters.acquire(request.adapter))
                # Asked after the wait for the adapter, and with no await before the stream stands in
                # `_streams`: else `_end` could come between, and nobody would ever end the stream.
                if self._stopping or self._ended:
                    raise Unavailable("the worker is stopping")
                # The caller's id may repeat; the engine's may not.
                request = replace(request, request_id=f"{next(self._numbers)}-{request.request_id}")
                stream: asyncio.Queue[TokenDelta] = asyncio.Queue()
                self._streams[request.request_id] = stream
                self._thread.add_request(request, adapter, arrived=arrived)
                finished = False
                try:
                    while not finished:
                        delta = await stream.get()
                        if delta.finish_reason is FinishReason.ERROR:
                            raise GenerationFailed(delta.error or "the generation failed")
                        finished = delta.finish_reason is not None
                        yield delta
                finally:
                    del self._streams[request.request_id]
                    self._thread.abort(request.request_id)
        finally:
            self._pending -= 1

    def _publish(self, deltas: list[TokenDelta]) -> None:
        """Called in the engine's thread: one wake-up of the event loop per step."""
        self._on_loop(self._dispatch, deltas)

    def _publish_end(self) -> None:
        """Called in the engine's thread, as the last thing that it does."""
        self._on_loop(self._end)

    def _on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback, *arguments)

    def _end(self) -> None:
        self._ended = True
        error = "the worker is stopping" if self._stopping else "the worker's engine broke down"
        for request_id, stream in self._streams.items():
            stream.put_nowait(TokenDelta(request_id, "", finish_reason=FinishReason.ERROR, error=error))

    def _dispatch(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.put_nowait(delta)
