"""Metering of requests: one Attempt per backend call, which becomes one UsageEvent at its end.

`Attempt.finish` is synchronous: when a client hangs up, any `await` would raise CancelledError, and the event
would be lost.

Loss at a kill is bounded. A stream's first bytes are sent only after a record of it is durable, so a stream
that the client saw is billed. Its progress is recorded every PROGRESS_SECONDS; while a record is late by
LATE_SECONDS, nothing more is sent. So at most the last second of a stream is not billed.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

import orjson

from contracts.base_routes import CopyRoute
from contracts.usage_event import UsageEvent, UsageStatus, uuid7
from gateway.api.sse import EventStream
from gateway.api.usage import Usage, estimate_completion
from gateway.errors import UsageLogUnavailable
from gateway.observability import Observer
from gateway.request_context import RequestContext
from gateway.routing import Resolution
from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED, PROGRESS

PROGRESS_SECONDS: Final = 0.5
LATE_SECONDS: Final = 0.4
_CODE_CHARACTERS: Final = 100
_NOT_CODE: Final = re.compile(r"[^\x20-\x7e]")


class Attempt:
    """One call of one copy, from its start to `finish`."""

    __slots__ = (
        "_copy",
        "_event_id",
        "_first",
        "_itl",
        "_last",
        "_meter",
        "_number",
        "_recorded",
        "_resolution",
        "_tokens",
        "_ttft",
        "context",
        "estimate",
        "on_record",
        "span",
        "usage",
    )

    def __init__(
        self, meter: Meter, context: RequestContext, resolution: Resolution, copy: CopyRoute, number: int
    ) -> None:
        base, observer = resolution.base, meter.observer
        self.usage = Usage()
        self.span = observer.attempt_begins(context.trace, base, copy.id, copy.kind, number)
        self.estimate: tuple[int, int] | None = None
        """(prompt tokens, completion tokens) to bill if the backend reports no usage."""
        self.on_record = False
        """True once a durable record of the attempt exists."""
        self._meter = meter
        self.context = context
        self._resolution = resolution
        self._copy = copy
        self._number = number
        self._event_id = uuid7()
        self._ttft: float | None = None
        self._first = (0, 0.0)
        self._recorded = 0
        self._itl, self._tokens, self._last = observer.metrics.model(base).itl, 0, 0.0

    def follow(self, events: EventStream, now: float) -> None:
        """Apply a stream's state at `now`, by `time.perf_counter`."""
        usage = self.usage
        if not usage.reported:
            self.estimate = (self.context.call.prompt_estimate, estimate_completion(events.text_bytes))
            self.has(events.events, now)
        elif usage.completion_tokens:
            self.has(usage.completion_tokens, now)

    def forget(self) -> None:
        """Drop the usage: the client received nothing, through no fault of its own."""
        self.usage.clear()
        self.estimate = None

    def has(self, tokens: int, now: float) -> None:
        """Record that the answer has `tokens` tokens at `now`, by `time.perf_counter`, perhaps as before."""
        if self._ttft is None:
            self._ttft = round((now - self.context.trace.started) * 1000, 3)
            self._first = (tokens, now)
        elif (fresh := tokens - self._tokens) > 0:
            self._itl.observe((now - self._last) / fresh, fresh)
        else:
            return
        self._tokens, self._last = tokens, now

    def finish(self, status: UsageStatus, error_code: str = "") -> None:
        """Record the usage event; it is durable once `Wal.commit` resolves."""
        self._meter.close(self, self.event(status, error_code))

    def event(self, status: UsageStatus, error_code: str = "") -> UsageEvent:
        context, caller, trace = self.context, self.context.caller, self.context.trace
        usage, resolution = self.usage, self._resolution
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        estimated = not usage.reported and self.estimate is not None
        if estimated and self.estimate is not None:
            prompt, completion = self.estimate
        return UsageEvent(
            event_id=self._event_id,
            tenant=caller.tenant,
            project=caller.project,
            key_id=caller.key_id,
            request_id=context.id,
            attempt=self._number,
            requested_model=context.call.model,
            alias=resolution.alias,
            arm=resolution.arm,
            adapter=resolution.engine_name,
            base_model=resolution.base,
            operation=context.call.operation,
            backend=self._copy.kind,
            endpoint=self._copy.id,
            status=status,
            # A backend's own code must not make the event unreadable.
            error_code=_NOT_CODE.sub("?", error_code[:_CODE_CHARACTERS]),
            prompt_tokens=prompt,
            cached_tokens=usage.cached_tokens,
            completion_tokens=completion,
            reasoning_tokens=usage.reasoning_tokens,
            images=len(context.call.images) if prompt else 0,
            estimated=estimated,
            ttft_ms=self._ttft,
            itl_ms=self._mean_itl_ms(),
            duration_ms=round((time.perf_counter() - trace.started) * 1000, 3),
            started_at=trace.started_ns // 1_000_000,
            gateway_id=self._meter.gateway_id,
        )

    def _mean_itl_ms(self) -> float | None:
        """Return the mean time from one token to the next; None if all tokens arrived at once."""
        tokens, at = self._first
        later = self._tokens - tokens
        return round((self._last - at) / later * 1000, 3) if later > 0 else None

    def progressed(self) -> bool:
        """Return True if tokens have arrived since the last call."""
        tokens = self.usage.completion_tokens + (self.estimate[1] if self.estimate else 0)
        changed, self._recorded = tokens != self._recorded, tokens
        return changed


class Meter:
    """Writes attempts to the write-ahead log: progress while they are open, the event when they close."""

    def __init__(self, wal: Wal, gateway_id: str, observer: Observer) -> None:
        self.gateway_id, self.observer = gateway_id, observer
        self._wal = wal
        self._open: set[Attempt] = set()
        self._on_time = asyncio.Event()
        self._on_time.set()

    def start(self, context: RequestContext, resolution: Resolution, copy: CopyRoute, number: int) -> Attempt:
        """Start an attempt. Raises UsageLogUnavailable if usage cannot be recorded."""
        if reason := self._wal.admits():
            raise UsageLogUnavailable(
                f"New requests are refused: {reason}. Free disk space on the gateway, then retry."
            )
        attempt = Attempt(self, context, resolution, copy, number)
        self._open.add(attempt)
        return attempt

    def close(self, attempt: Attempt, event: UsageEvent) -> None:
        if attempt in self._open:
            self._open.remove(attempt)
            self._wal.append(CLOSED, orjson.dumps(event.to_dict()))
            context = attempt.context
            context.ticket.count(
                event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.reasoning_tokens
            )
            self.observer.attempt(context.trace, event, attempt.span)

    def durable(self) -> asyncio.Future[None]:
        """Return a future that resolves once every event recorded so far survives a power cut."""
        return self._wal.commit(alone=not self._open)

    async def before_showing(self, attempt: Attempt) -> None:
        """Wait until the client may see more of an open stream: immediate except for its first bytes."""
        if not attempt.on_record:
            attempt.progressed()
            self._record(attempt)
            await self._wal.commit(alone=len(self._open) == 1)
            attempt.on_record = True
        if not self._on_time.is_set():
            await self._on_time.wait()

    async def run(self) -> None:
        """Record the progress of open streams twice a second."""
        clock = asyncio.get_running_loop().time
        while True:
            following = clock() + PROGRESS_SECONDS
            await self.record_progress()
            await asyncio.sleep(following - clock())

    async def record_progress(self) -> None:
        segment = self._wal.segment
        # A fresh segment first gets every open stream, so that older segments can be deleted.
        entire = segment != self._wal.checkpoint
        for attempt in self._open:
            # Attempts whose client has received nothing are not recorded, so that a crash does not bill them.
            if attempt.on_record and (attempt.progressed() or entire):
                self._record(attempt)
        recorded = self._wal.commit()
        await asyncio.wait({recorded}, timeout=LATE_SECONDS)
        self._on_time.clear()
        try:
            await recorded
        finally:
            self._on_time.set()
        self._wal.checkpoint = segment

    def _record(self, attempt: Attempt) -> None:
        self._wal.append(PROGRESS, orjson.dumps(attempt.event("interrupted", "gateway_died").to_dict()))
