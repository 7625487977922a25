"""The record of one request, from its arrival to its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from contracts.tracing import Span

Outcome = Literal["ok", "error", "cancelled"]


class RequestTrace:
    """The facts of one request. The code that learns a fact sets it; the observer reads them at the end.

    `pause` and `resume` enclose every wait for the backend, the client or a place in the queue, so that `own`
    is the gateway's own time. After an exception during a pause, the rest of the request is not counted.

    Attributes:
        endpoint: the API's path, or a fixed word for others; never the client's own text.
        started: `time.perf_counter()` at arrival.
        own: seconds of the gateway's own work so far.
        queued: seconds of waiting for admission; None before admission.
        base, adapter: the served or requested ones; "" while unknown.
        status: of the HTTP response; 499 if the client left before.
        code: the gateway's error code, or "".
        limit: kind of the limit that refused the request, or "".
        copy: id of the copy that answered, or was tried last.
        span: the request's span, None when it is not traced.
    """

    __slots__ = (
        "_since",
        "adapter",
        "attempts",
        "base",
        "cached",
        "code",
        "completion",
        "copy",
        "endpoint",
        "key_id",
        "limit",
        "outcome",
        "own",
        "prompt",
        "queued",
        "request_id",
        "span",
        "started",
        "started_ns",
        "status",
        "tenant",
        "ttft_ms",
    )

    def __init__(self, request_id: str, endpoint: str) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.started = self._since = time.perf_counter()
        self.started_ns = time.time_ns()
        self.own = 0.0
        self.queued: float | None = None
        self.tenant = self.key_id = self.base = self.adapter = self.copy = self.code = self.limit = ""
        self.status = 200
        self.outcome: Outcome = "ok"
        self.prompt = self.cached = self.completion = self.attempts = 0
        self.ttft_ms: float | None = None
        self.span: Span | None = None

    def pause(self) -> None:
        """Stop counting time as the gateway's own. Do nothing if it is paused already."""
        if self._since:
            self.own += time.perf_counter() - self._since
            self._since = 0.0

    def resume(self, now: float = 0.0) -> None:
        """Count time as the gateway's own from now, or from `now` (seconds of `time.perf_counter`)."""
        self._since = now or time.perf_counter()

    def record_queue_time(self, seconds: float) -> None:
        """Record that `seconds` of the time since the last pause were spent waiting for admission."""
        self.queued = seconds
        self.own -= seconds

    def end(self) -> float:
        """End the trace and return the seconds since the request's arrival."""
        now = time.perf_counter()
        if self._since:
            self.own += now - self._since
            self._since = 0.0
        return now - self.started
