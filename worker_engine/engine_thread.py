"""Runs the engine's loop in its own thread, separate from HTTP's."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from worker_engine.adapters.adapter import Adapter
from worker_engine.engine import Engine
from worker_engine.protocol import FinishReason, GenerateRequest, TokenDelta

log = logging.getLogger(__name__)


class EngineThread:
    """Drives an engine in a thread; commands enter through a queue, deltas leave through a callback."""

    def __init__(
        self, engine: Engine, on_deltas: Callable[[list[TokenDelta]], None], on_end: Callable[[], None]
    ) -> None:
        """Both callbacks run in the engine's thread: one with each step's deltas, one when it ends."""
        self._engine, self._on_deltas, self._on_end = engine, on_deltas, on_end
        engine.on_prompts = on_deltas
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def add_request(self, request: GenerateRequest, adapter: Adapter | None, *, arrived: float) -> None:
        self._commands.put(lambda: self._add(request, adapter, arrived))

    def abort(self, request_id: str) -> None:
        self._commands.put(lambda: self._engine.abort(request_id))

    def stop(self) -> None:
        """End the loop after the current step, and wait for it; running requests get no more deltas."""
        self._commands.put(None)
        self._thread.join()

    def _loop(self) -> None:
        try:
            self._serve()
        except Exception:
            log.exception("the engine's thread broke; its requests end with an error")
        finally:
            self._on_end()

    def _serve(self) -> None:
        while self._obey():
            if self._engine.idle:
                continue
            try:
                deltas = self._engine.step()
            except Exception:
                log.exception("engine step failed; its requests end with an error")
                self._on_deltas(
                    self._engine.fail_all("the engine failed at this step; the same request may succeed")
                )
                self._engine.check_device()
                continue
            if deltas:
                self._on_deltas(deltas)

    def _add(self, request: GenerateRequest, adapter: Adapter | None, arrived: float) -> None:
        """Add a request; one that the engine cannot accept ends with an error."""
        try:
            self._engine.add_request(request, adapter, arrived=arrived)
        except Exception:
            log.exception("request %s could not be taken in", request.request_id)
            error = "the engine could not take this request in; the worker's log has the details"
            self._on_deltas(
                [TokenDelta(request.request_id, "", finish_reason=FinishReason.ERROR, error=error)]
            )

    def _obey(self) -> bool:
        """Execute all commands; wait for one if there is nothing to compute. Return False to stop."""
        while True:
            try:
                command = self._commands.get(block=self._engine.idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
