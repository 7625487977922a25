"""A request's path through the gateway: chats, completions, embeddings and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Final

from contracts.route_table import RouteTable
from contracts.usage_event import UsageStatus
from gateway.admission import Admission, Plan, Ticket, clock, reservation
from gateway.answer import Answer
from gateway.api.bodies import Bodies
from gateway.api.dialect import ApiDialect
from gateway.api.responses import RESPONSES, ResponsesDialect
from gateway.api.schema import EMBEDDINGS, PARAMETERS, Call, Dropped, parse
from gateway.dispatch import Dispatcher
from gateway.errors import GatewayError, Stopping, UpstreamFailed, error_code, failure_status
from gateway.http.asgi import (
    JSON,
    WATCH_AFTER_SECONDS,
    HangUpWatch,
    Header,
    Receive,
    Scope,
    Send,
    header,
    respond,
)
from gateway.http.timeouts import Timeouts
from gateway.lifecycle.drain import Drain
from gateway.observability import Observer, RequestTrace
from gateway.routing import Authorizer, Caller, Resolution, dropped_parameters, fallbacks, resolve
from gateway.routing.route_feed import RouteFeed
from gateway.routing.waiting_room import WaitingRoom
from gateway.usage.metering import Meter, Request
from gateway.usage.prompt_log import PromptLog

STICKY_HEADER: Final = b"x-graftwork-sticky"
"""Header that keeps a caller on one arm of a split alias; without it the `user`, else the request decides."""
_SSE: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


INLINE_BYTES: Final = 256 << 10
"""Larger bodies are parsed in a thread: a list of a million token ids takes 25 ms."""
PATHS: Final = frozenset({*PARAMETERS, RESPONSES})
"""Paths that are served by POST."""


class Completions:
    """Serves every endpoint that a backend answers."""

    def __init__(
        self,
        feed: RouteFeed,
        authorizer: Authorizer,
        bodies: Bodies,
        admission: Admission,
        meter: Meter,
        dispatcher: Dispatcher,
        observer: Observer,
        drain: Drain,
        room: WaitingRoom,
        prompts: PromptLog,
    ) -> None:
        self._prompts = prompts
        self._drain = drain
        self._room = room
        self._feed = feed
        self._authorizer = authorizer
        self._bodies = bodies
        self._observer = observer
        self._admission = admission
        self._meter = meter
        self._dispatcher = dispatcher
        self._moments: Timeouts[HangUpWatch] = Timeouts(WATCH_AFTER_SECONDS, HangUpWatch.start)

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, trace: RequestTrace, headers: list[Header]
    ) -> bool:
        """Answer one request; True if the answer was complete.

        `headers` go on every response, and gain the limits' headers.

        Raises:
            GatewayError: nothing has been sent yet, and this is the answer.
        """
        request_id = trace.request_id
        table = self._feed.current()
        caller = self._authorizer.authorize(table, scope)
        trace.tenant, trace.key_id = caller.tenant, caller.key_id
        trace.pause()
        body = await self._bodies.read(scope, receive)
        trace.resume()
        dropped = partial(dropped_parameters, table, caller.tenant, allowed=caller.models)
        if len(body) <= INLINE_BYTES:
            dialect = _read(scope["path"], body, request_id, dropped)
        else:
            dialect = await asyncio.to_thread(_read, scope["path"], body, request_id, dropped)
        call = dialect.call
        subject = header(scope, STICKY_HEADER).decode("latin-1") or call.user or request_id
        resolution, others = _find(table, caller, call, subject)
        trace.base, trace.adapter = resolution.base, resolution.engine_name
        plan = self._admission.plan(table, caller, resolution.base, call.model)
        reserved = reservation(call, len(body), resolution.route.max_model_len)
        watch = HangUpWatch(receive, self._moments)
        kept = None
        if key := table.tenants[caller.tenant].prompt_key:
            kept = self._prompts.begin(key, caller.tenant, request_id, scope["path"], body)
            send = kept.through(send)
        try:
            try:
                ticket = await self._admit(plan, reserved, trace)
            finally:
                headers += plan.headers(clock.now())
            started_at = trace.started_ns // 1_000_000
            try:
                if await self._held(resolution, others, trace, len(body)):
                    # During the wait the key may have been revoked, or the model changed.
                    table = self._feed.current()
                    caller = self._authorizer.authorize(table, scope)
                    resolution, others = _find(table, caller, call, subject)
                request = Request(
                    request_id, caller, call, resolution, trace.started, started_at, ticket, trace
                )
                salt = table.tenants[caller.tenant].cache_salt
                check = partial(self._check, scope, call, subject)
                with await self._dispatcher.open(request, call, salt, others, watch, check) as answer:
                    headers = [*headers, *_served(answer.request.resolution)]
                    return await self._relay(answer, dialect, send, headers)
            finally:
                ticket.settle()
        except asyncio.CancelledError:
            if not watch.gone:
                raise
            self._observer.gone(trace)
            return False
        finally:
            watch.stop()
            if kept is not None:
                self._prompts.end(kept)

    async def _held(
        self, resolution: Resolution, others: Sequence[Resolution], trace: RequestTrace, size: int
    ) -> bool:
        """Wait for a copy if the base model is scaled to zero and none of `others` can serve instead.

        Returns True if it waited. `size` is the request's bytes.
        """
        if resolution.copies or not resolution.route.hold_seconds:
            return False
        if any(other.copies for other in others):
            self._room.ask(resolution.base)
            return False
        trace.pause()
        try:
            await self._room.copies(resolution, trace.tenant, size)
        finally:
            trace.resume()
        return True

    def _check(self, scope: Scope, call: Call, subject: str, served: Resolution) -> None:
        """Check after a wait that the caller is still allowed and `served` still exists.

        Raises:
            GatewayError: otherwise.
        """
        table = self._feed.current()
        caller = self._authorizer.authorize(table, scope)
        resolve(table, caller.tenant, call.model, subject, allowed=caller.models)
        resolve(table, caller.tenant, served.model)

    async def _admit(self, plan: Plan, reserved: tuple[int, int], trace: RequestTrace) -> Ticket:
        before = perf_counter()
        try:
            ticket = await self._admission.admit(plan, *reserved)
        except BaseException:
            trace.record_queue_time(perf_counter() - before)
            raise
        # If the leases in hand sufficed, the request did not wait: the time is the gateway's own.
        trace.record_queue_time(ticket.waited)
        return ticket

    async def _relay(self, answer: Answer, dialect: ApiDialect, send: Send, headers: list[Header]) -> bool:
        if dialect.call.stream:
            return await self._relay_events(answer, dialect, send, headers)
        attempt = answer.attempt
        try:
            body = dialect.whole(await answer.read())
        except GatewayError as error:
            attempt.finish(failure_status(error), error_code(error))
            await self._meter.durable()
            raise
        attempt.finish("ok")
        self._drain.spare()
        await self._meter.durable()
        attempt.request.trace.pause()
        await respond(send, 200, body, [JSON, *headers])
        return True

    async def _relay_events(
        self, answer: Answer, dialect: ApiDialect, send: Send, headers: list[Header]
    ) -> bool:
        attempt, events = answer.attempt, answer.events
        trace = attempt.request.trace
        await send({"type": "http.response.start", "status": 200, "headers": [*_SSE, *headers]})
        last, whole = b"", False
        # From here to the end only the work between reading and sending is the gateway's own time.
        trace.pause()
        try:
            while True:
                block = await answer.read()
                now = perf_counter()
                last = dialect.events(block)
                if events.done or events.failed:
                    break
                if last:
                    await self._meter.before_showing(attempt)
                    trace.own += perf_counter() - now
                    block, last = last, b""
                    await send({"type": "http.response.body", "body": block, "more_body": True})
            trace.resume(now)
            if events.failed:
                raise answer.failed(events.error)
            attempt.finish("ok")
            self._drain.spare()
            whole = True
        except (GatewayError, ValueError) as error:
            failure = error if isinstance(error, GatewayError) else UpstreamFailed(str(error))
            last += self._fail(answer, dialect, failure, failure_status(failure), error_code(failure))
        except asyncio.CancelledError:
            if not self._drain.cut():
                raise
            last += self._fail(answer, dialect, Stopping(), "interrupted", "shutdown")
        # The end is held back until the usage is durable, so that every complete answer is billed.
        await self._meter.durable()
        trace.pause()
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return whole

    def _fail(
        self, answer: Answer, dialect: ApiDialect, failure: GatewayError, status: UsageStatus, code: str
    ) -> bytes:
        """Record a stream's failure; return the event that reports it to the client."""
        answer.attempt.finish(status, code)
        self._observer.failed(answer.attempt.request.trace, failure, 200)
        return dialect.failure(failure)


def _find(
    table: RouteTable, caller: Caller, call: Call, subject: str
) -> tuple[Resolution, tuple[Resolution, ...]]:
    """Return the call's resolution and its fallbacks. Raises ModelNotFound."""
    resolution = resolve(table, caller.tenant, call.model, subject, allowed=caller.models)
    # Embeddings of another model are in another vector space, so they have no fallbacks.
    if call.path == EMBEDDINGS or not resolution.fallbacks:
        return resolution, ()
    return resolution, tuple(fallbacks(table, caller.tenant, resolution, subject, allowed=caller.models))


def _served(resolution: Resolution) -> list[Header]:
    """Return the headers that name the version that really answers."""
    headers: list[Header] = [(b"x-graftwork-served-model", resolution.model.encode())]
    if resolution.adapter is not None:
        headers.append((b"x-graftwork-adapter", resolution.adapter.name.encode()))
    return headers


def _read(path: str, body: bytes, request_id: str, dropped: Dropped) -> ApiDialect:
    """Parse the request in `body`. Raises BadRequest."""
    if path == RESPONSES:
        return ResponsesDialect.read(body, request_id, dropped)
    return ApiDialect(parse(path, body, dropped))
