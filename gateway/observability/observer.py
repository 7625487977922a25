"""Feeds metrics, traces and the access log from the begin and end of requests and attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from contracts.usage_event import UsageEvent
from gateway.errors import GatewayError, UpstreamRefused
from gateway.http.asgi import Scope, header
from gateway.observability import spans
from gateway.observability.access_log import log_request
from gateway.observability.metrics import Metrics, State
from gateway.observability.request_trace import RequestTrace

if TYPE_CHECKING:
    from contracts.tracing import Span, Tracing

PUBLISH_SECONDS: Final = 1.0
_MODELS: Final = "/v1/models"
CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's status of a request whose client disconnected before its answer."""


class Observer:
    """Observes every request of a process. Nothing here waits or fails."""

    def __init__(
        self, metrics: Metrics, endpoints: Collection[str], *, tracing: Tracing | None, access_log: bool
    ) -> None:
        self.metrics = metrics
        self._endpoints = frozenset(endpoints)
        self._tracing = tracing
        self._access_log = access_log

    def begin(self, scope: Scope, request_id: str) -> RequestTrace:
        """Record a request's arrival; `end` must follow."""
        path = scope["path"]
        if path not in self._endpoints:
            path = _MODELS if path.startswith(_MODELS) else "other"
        trace = RequestTrace(request_id, path)
        self.metrics.in_flight += 1
        if self._tracing is not None:
            trace.span = spans.begin(self._tracing, trace, header(scope, b"traceparent"))
        return trace

    def failed(self, trace: RequestTrace, error: GatewayError, status: int) -> None:
        """Record an error answer, or a stream that ends with an error."""
        trace.status, trace.outcome = status, "error"
        # A backend's own codes are unbounded, so they are not labels; the usage event has them.
        trace.code = "upstream_refused" if isinstance(error, UpstreamRefused) else error.code
        trace.limit = error.limit

    def crashed(self, trace: RequestTrace) -> None:
        trace.status, trace.outcome, trace.code = 500, "error", "internal_error"

    def interrupted(self, trace: RequestTrace) -> None:
        """Record a request that was cut off because the gateway stops."""
        trace.status, trace.outcome, trace.code = 503, "error", "shutdown"

    def cancelled(self, trace: RequestTrace) -> None:
        """Record that the client disconnected."""
        trace.status, trace.outcome = CLIENT_CLOSED_REQUEST, "cancelled"

    def end(self, trace: RequestTrace) -> None:
        seconds = trace.end()
        self.metrics.in_flight -= 1
        self.metrics.request(trace, seconds)
        if trace.span is not None:
            spans.end(trace)
        if self._access_log:
            log_request(trace, seconds)

    def attempt_begins(
        self, trace: RequestTrace, base: str, copy: str, kind: str, number: int
    ) -> Span | None:
        """Record that a copy is about to be called; `attempt` must follow."""
        trace.attempts, trace.copy = number, copy
        if trace.span is None:
            return None
        return spans.attempt(trace, base=base, copy=copy, kind=kind, number=number)

    def attempt(self, trace: RequestTrace, event: UsageEvent, span: Span | None) -> None:
        """Record an attempt's end and usage."""
        trace.base, trace.adapter, trace.ttft_ms = event.base_model, event.adapter, event.ttft_ms
        trace.prompt, trace.cached, trace.completion = (
            event.prompt_tokens,
            event.cached_tokens,
            event.completion_tokens,
        )
        self.metrics.attempt(event)
        if span is not None:
            spans.end_attempt(span, event)

    async def run(self, state: State) -> None:
        """Publish the process's state once a second."""
        due = time.monotonic()
        while True:
            self.metrics.publish(state, lag=max(0.0, time.monotonic() - due))
            due = time.monotonic() + PUBLISH_SECONDS
            await asyncio.sleep(PUBLISH_SECONDS)
