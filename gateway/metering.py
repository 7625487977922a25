"""What a request used: one Attempt per call of a backend, one UsageEvent when it ends.

`Attempt.finish` is synchronous: on a client's hang-up any `await` would raise CancelledError, and the
event would be lost with it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.errors import UsageLogUnavailable
from gateway.routing import Caller, Resolution
from gateway.sse import Usage
from gateway.wal import Wal
from gateway.wal_records import CLOSED, PROGRESS
from gateway.wire import CopyRoute, UsageEvent, UsageStatus, uuid7

PROGRESS_SECONDS: Final = 0.5
"""A killed gateway loses what an open stream got since the last record: this long, and one write."""


@dataclass(frozen=True, slots=True)
class Request:
    """What usage records of a request before a backend is chosen."""

    id: str
    caller: Caller
    model: str
    resolution: Resolution
    started: float
    """`time.perf_counter()` at arrival."""
    started_at: int
    """Unix milliseconds."""


class Attempt:
    """One call of one copy, from its start to `finish`."""

    __slots__ = (
        "_copy",
        "_event_id",
        "_meter",
        "_number",
        "_recorded",
        "_request",
        "_ttft",
        "estimate",
        "usage",
    )

    def __init__(self, meter: Meter, request: Request, copy: CopyRoute, number: int) -> None:
        self.usage = Usage()
        self.estimate: tuple[int, int] | None = None
        """(prompt tokens, completion tokens) to bill when the backend reports nothing."""
        self._meter = meter
        self._request = request
        self._copy = copy
        self._number = number
        self._event_id = uuid7()
        self._ttft: float | None = None
        self._recorded = 0

    def first_token(self) -> None:
        """Notes the time of the first token; later calls change nothing."""
        if self._ttft is None:
            self._ttft = round((time.perf_counter() - self._request.started) * 1000, 3)

    def finish(self, status: UsageStatus, error_code: str = "") -> None:
        """Records the usage event; it is durable once `Wal.commit` resolves."""
        self._meter.close(self, self.event(status, error_code))

    def event(self, status: UsageStatus, error_code: str = "") -> UsageEvent:
        request, usage, resolution = self._request, self.usage, self._request.resolution
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        estimated = not usage.reported and self.estimate is not None
        if estimated and self.estimate is not None:
            prompt, completion = self.estimate
        return UsageEvent(
            event_id=self._event_id,
            tenant=request.caller.tenant,
            project=request.caller.project,
            key_id=request.caller.key_id,
            request_id=request.id,
            attempt=self._number,
            requested_model=request.model,
            alias=resolution.alias,
            arm=resolution.arm,
            adapter=resolution.engine_name,
            base_model=resolution.base,
            backend=self._copy.kind,
            endpoint=self._copy.id,
            status=status,
            error_code=error_code,
            prompt_tokens=prompt,
            cached_tokens=usage.cached_tokens,
            completion_tokens=completion,
            estimated=estimated,
            ttft_ms=self._ttft,
            duration_ms=round((time.perf_counter() - request.started) * 1000, 3),
            started_at=request.started_at,
            gateway_id=self._meter.gateway_id,
        )

    def progressed(self) -> bool:
        """True when tokens have come since this was last asked."""
        tokens = self.usage.completion_tokens + (self.estimate[1] if self.estimate else 0)
        changed, self._recorded = tokens != self._recorded, tokens
        return changed


class Meter:
    """Writes attempts to the write-ahead log: progress while they are open, the event when they close."""

    def __init__(self, wal: Wal, gateway_id: str) -> None:
        self.gateway_id = gateway_id
        self._wal = wal
        self._open: set[Attempt] = set()

    def start(self, request: Request, copy: CopyRoute, number: int) -> Attempt:
        """Raises UsageLogUnavailable when usage could not be recorded."""
        if reason := self._wal.admits():
            raise UsageLogUnavailable(
                f"No new work is taken: {reason}. Free disk space on the gateway, retry."
            )
        attempt = Attempt(self, request, copy, number)
        self._open.add(attempt)
        return attempt

    def close(self, attempt: Attempt, event: UsageEvent) -> None:
        if attempt in self._open:
            self._open.remove(attempt)
            self._wal.append(CLOSED, orjson.dumps(event))

    def durable(self) -> asyncio.Future[None]:
        """Resolves once every event recorded so far survives a power cut."""
        return self._wal.commit()

    async def run(self) -> None:
        """Records the progress of open streams twice a second."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            await self.record_progress()

    async def record_progress(self) -> None:
        segment = self._wal.segment
        # A fresh segment first gets every open stream, so that older segments can be deleted.
        entire = segment != self._wal.checkpoint
        for attempt in self._open:
            if attempt.progressed() or entire:
                self._wal.append(PROGRESS, orjson.dumps(attempt.event("interrupted", "gateway_died")))
        await self._wal.commit()
        self._wal.checkpoint = segment
