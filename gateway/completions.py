"""A request's path through the gateway, from its parsed body to its answer."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import Final

from contracts.usage_event import UsageStatus
from gateway.answer import Answer
from gateway.api.dialect import ApiDialect
from gateway.api.responses import RESPONSES, ResponsesDialect
from gateway.api.schema import PARAMETERS, SCORING, parse
from gateway.api.scoring import ScoringDialect
from gateway.dispatch import Dispatcher
from gateway.errors import GatewayError, Stopping, UpstreamFailed, error_code, failure_status
from gateway.http.asgi import EVENT_STREAM, JSON, WATCH_AFTER_SECONDS, HangUpWatch, Header, header, respond
from gateway.http.timeouts import Timeouts
from gateway.lifecycle.drain import Drain
from gateway.multi_adapter import MultiAdapter
from gateway.observability import Observer
from gateway.request_context import RequestContext
from gateway.request_preparer import RequestPreparer
from gateway.routing import Resolution, dropped_parameters
from gateway.usage.metering import Meter
from gateway.usage.prompt_log import PromptLog, Record

STICKY_HEADER: Final = b"x-graftwork-sticky"
"""Header that keeps a caller on one arm of a split alias; without it the `user`, else the request decides."""
INLINE_BYTES: Final = 256 << 10
"""Larger bodies are parsed in a thread: a list of a million token ids takes 25 ms."""
PATHS: Final = frozenset({*PARAMETERS, RESPONSES})
"""Paths that are served by POST."""


class Completions:
    """Serves every endpoint that a backend answers."""

    def __init__(
        self,
        preparer: RequestPreparer,
        dispatcher: Dispatcher,
        multi_adapter: MultiAdapter,
        meter: Meter,
        observer: Observer,
        drain: Drain,
        prompts: PromptLog,
        image_hosts: frozenset[str] = frozenset(),
    ) -> None:
        """`image_hosts`: hosts whose images copies may fetch."""
        self._preparer, self._dispatcher, self._multi_adapter = preparer, dispatcher, multi_adapter
        self._meter, self._observer, self._drain, self._prompts = meter, observer, drain, prompts
        self._image_hosts = image_hosts
        self._moments: Timeouts[HangUpWatch] = Timeouts(WATCH_AFTER_SECONDS, HangUpWatch.start)

    async def serve(self, context: RequestContext) -> bool:
        """Answer one request; True if the answer was complete.

        Raises:
            GatewayError: nothing has been sent yet, and this is the answer.
        """
        if len(context.body) <= INLINE_BYTES:
            context.dialect = _read(context, self._image_hosts)
        else:
            context.dialect = await asyncio.to_thread(_read, context, self._image_hosts)
        sticky = header(context.scope, STICKY_HEADER).decode("latin-1")
        subject = sticky or context.call.user or context.id
        try:
            self._preparer.resolve(context, subject)
            return await self._serve_resolved(context, subject)
        except GatewayError as error:
            context.dialect.translate(error)
            raise

    async def _serve_resolved(self, context: RequestContext, subject: str) -> bool:
        """Answer a request whose models are known, and record it if its tenant logs prompts."""
        context.watch = HangUpWatch(context.receive, self._moments)
        record = self._record_prompt(context)
        try:
            if context.call.adapters:
                return await self._multi_adapter.serve(context, subject)
            return await self._serve_admitted(context, subject)
        except asyncio.CancelledError:
            if not context.watch.disconnected:
                raise
            self._observer.cancelled(context.trace)
            return False
        finally:
            context.watch.stop()
            if record is not None:
                self._prompts.end(record)

    async def _serve_admitted(self, context: RequestContext, subject: str) -> bool:
        """Reserve the request under its limits, send it to a copy and relay the answer."""
        context.ticket = await self._preparer.admit(context)
        try:
            if await self._preparer.hold(context, context.models):
                self._preparer.refresh(context, subject)
            with await self._dispatcher.open(context) as answer:
                return await self._relay(answer)
        finally:
            context.ticket.settle()

    def _record_prompt(self, context: RequestContext) -> Record | None:
        """Start to record the request and its answer if the tenant logs prompts."""
        key = context.table.tenants[context.caller.tenant].prompt_key
        if not key:
            return None
        record = self._prompts.begin(
            key, context.caller.tenant, context.id, context.scope["path"], context.body
        )
        context.send = record.through(context.send)
        return record

    async def _relay(self, answer: Answer) -> bool:
        attempt, context = answer.attempt, answer.context
        if context.call.stream:
            return await self._relay_events(answer)
        try:
            body = context.dialect.whole(await answer.read())
            self._preparer.measure(answer)
        except GatewayError as error:
            attempt.finish(failure_status(error), error_code(error))
            await self._meter.durable()
            raise
        attempt.finish("ok")
        self._drain.protect()
        await self._meter.durable()
        context.trace.pause()
        await respond(context.send, 200, body, [JSON, *context.headers, *_served(answer.request.resolution)])
        return True

    async def _relay_events(self, answer: Answer) -> bool:
        attempt, events, context = answer.attempt, answer.events, answer.context
        trace, dialect, send = context.trace, context.dialect, context.send
        headers = [*EVENT_STREAM, *context.headers, *_served(answer.request.resolution)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
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
            self._drain.protect()
            whole = True
        except (GatewayError, ValueError) as error:
            failure = error if isinstance(error, GatewayError) else UpstreamFailed(str(error))
            last += self._fail(answer, failure, failure_status(failure), error_code(failure))
        except asyncio.CancelledError:
            if not self._drain.cut():
                raise
            last += self._fail(answer, Stopping(), "interrupted", "shutdown")
        # The end is held back until the usage is durable, so that every complete answer is billed.
        await self._meter.durable()
        trace.pause()
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return whole

    def _fail(self, answer: Answer, failure: GatewayError, status: UsageStatus, code: str) -> bytes:
        """Record a stream's failure; return the event that reports it to the client."""
        answer.attempt.finish(status, code)
        self._observer.failed(answer.context.trace, failure, 200)
        return answer.context.dialect.failure(failure)


def _served(resolution: Resolution) -> list[Header]:
    """Return the headers that name the version that really answers."""
    headers: list[Header] = [(b"x-graftwork-served-model", resolution.model.encode())]
    if resolution.adapter is not None:
        headers.append((b"x-graftwork-adapter", resolution.adapter.name.encode()))
    return headers


def _read(context: RequestContext, image_hosts: frozenset[str]) -> ApiDialect:
    """Parse the request's body. Raises BadRequest."""
    path, body, caller = context.scope["path"], context.body, context.caller
    dropped = partial(dropped_parameters, context.table, caller.tenant, allowed=caller.models)
    if path == RESPONSES:
        return ResponsesDialect.read(body, context.id, dropped, image_hosts)
    call = parse(path, body, dropped, image_hosts)
    return ScoringDialect(call) if path in SCORING else ApiDialect(call)
