"""One request as it is seen from its arrival to its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from contracts.tracing import Span

Outcome = Literal["ok", "error", "cancelled"]


class Seen:
    """What is known of a request. Whoever learns something sets it; the observer reads it at the end.

    `waits` and `back` stand around every wait for the backend, the client or a place in the queue: what lies
    between them is not the gateway's own time. While it waits an exception may take the request elsewhere;
    what is left to do then is small, and not counted.

    Attributes:
        endpoint: the API's path, or a word for the others; never what the client wrote.
        started: `time.perf_counter()` at arrival.
        own: seconds that the gateway itself took so far.
        queued: seconds of waiting for admission; None when it did not come so far.
        base, adapter: what served it, or was meant to; "" when that is not known.
        status: of the HTTP response; 499 when the client left before.
        code: the gateway's word for what went wrong, or "".
        limit: kind of the limit that refused it, or "".
        copy: id of the copy that answered, or was tried last.
        span: its span, None when it is not traced.
    """

    __slots__ = ("_since", "adapter", "attempts", "base", "cached", "code", "completion", "copy", "endpoint",
                 "key_id", "limit", "outcome", "own", "prompt", "queued", "request_id", "span", "started",
                 "started_ns", "status", "tenant", "ttft_ms")  # fmt: skip

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

    def waits(self) -> None:
        """From now on for others; when it does already, nothing changes."""
        if self._since:
            self.own += time.perf_counter() - self._since
            self._since = 0.0

    def back(self, now: float = 0.0) -> None:
        """The wait is over, or was at `now`."""
        self._since = now or time.perf_counter()

    def queues(self, seconds: float) -> None:
        """Of the time since the last wait so much went to waiting for admission."""
        self.queued = seconds
        self.own -= seconds

    def end(self) -> float:
        """Seconds from arrival until now, which is the end."""
        now = time.perf_counter()
        if self._since:
            self.own += now - self._since
            self._since = 0.0
        return now - self.started
