"""`POST /v1/chat/completions` and `/v1/completions`: the walk of one request through the gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

import orjson

from gateway.backends.base import Backend, BackendRequest, BackendStream
from gateway.errors import (
    GatewayError,
    UpstreamFailed,
    UpstreamUnreachable,
    error_code,
    error_event,
)
from gateway.http import JSON, HangUpWatch, Header, Receive, Scope, Send, bearer, read_body, respond
from gateway.metering import Attempt, Meter, Request
from gateway.openai_schema import Call, parse
from gateway.route_feed import RouteFeed
from gateway.routing import authenticate, resolve
from gateway.sse import EventStream, rename_model

logger = logging.getLogger(__name__)

_SSE: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_BYTES_A_TOKEN: Final = 4
"""For estimates only, where a backend reports no usage."""


class Completions:
    """Serves both completion endpoints."""

    def __init__(self, feed: RouteFeed, meter: Meter, backends: Mapping[str, Backend]) -> None:
        self._feed = feed
        self._meter = meter
        self._backends = backends

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, headers: list[Header]
    ) -> None:
        """Answers one request; `headers` go on every response.

        Raises:
            GatewayError: nothing has been sent yet and this is the answer.
            ClientGone: the client left before its request was whole.
        """
        started, started_at = time.perf_counter(), time.time_ns() // 1_000_000
        table = self._feed.current()
        caller = authenticate(table, bearer(scope))
        call = parse(scope["path"], await read_body(receive))
        resolution = resolve(table, caller.tenant, call.model)
        request = Request(request_id, caller, call.model, resolution, started, started_at)
        salt = table.tenants[caller.tenant].cache_salt
        if resolution.adapter is not None:
            headers = [*headers, (b"x-graftwork-adapter", resolution.adapter.name.encode())]
        watch = HangUpWatch(receive)
        try:
            await self._attempt(request, call, salt, send, headers, watch)
        finally:
            watch.stop()

    async def _attempt(
        self, request: Request, call: Call, salt: str, send: Send, headers: list[Header], watch: HangUpWatch
    ) -> None:
        """Tries the copies in order: only one that was never reached is followed by the next."""
        last: UpstreamUnreachable | None = None
        for number, copy in enumerate(request.resolution.copies, 1):
            backend = self._backends.get(copy.kind)
            if backend is None:
                raise UpstreamFailed(f"Copy {copy.id} is of kind {copy.kind!r}, which this gateway lacks.")
            upstream = BackendRequest(call, request.resolution, copy, request.id, salt, request.caller.tenant)
            attempt = self._meter.start(request, copy, number)
            try:
                await self._relay(backend, upstream, attempt, send, headers)
            except UpstreamUnreachable as error:
                attempt.finish("error", error.code)
                logger.warning("request %s: copy %s is unreachable", request.id, copy.id)
                last = error
                continue
            except GatewayError as error:
                attempt.finish("error", error_code(error))
                await self._meter.durable()
                raise
            except asyncio.CancelledError:
                attempt.finish("cancelled" if watch.gone else "interrupted", "" if watch.gone else "shutdown")
                if watch.gone:
                    return
                raise
            except BaseException:
                attempt.finish("error", "internal_error")
                raise
            return
        await self._meter.durable()
        raise last or UpstreamUnreachable("No copy of this model is deployed; retry later.")

    async def _relay(
        self,
        backend: Backend,
        request: BackendRequest,
        attempt: Attempt,
        send: Send,
        headers: list[Header],
    ) -> None:
        stream = await backend.stream(request)
        try:
            renamed = (backend.model_name(request), request.call.model)
            if request.call.stream:
                events = EventStream(attempt.usage, request.call.view, renamed)
                await self._relay_events(stream, events, request, attempt, send, headers)
            else:
                await self._relay_body(stream, renamed, request, attempt, send, headers)
        finally:
            stream.close()

    async def _relay_body(
        self,
        stream: BackendStream,
        renamed: tuple[str, str],
        request: BackendRequest,
        attempt: Attempt,
        send: Send,
        headers: list[Header],
    ) -> None:
        body = await stream.read()
        while part := await stream.read():
            body += part
        try:
            usage = orjson.loads(body).get("usage")
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise UpstreamFailed("The backend's answer is not a JSON object.") from error
        if isinstance(usage, dict):
            attempt.usage.take(usage)
        else:
            attempt.estimate = (_estimate(request.call), len(body) // _BYTES_A_TOKEN)
        attempt.finish("ok")
        await self._meter.durable()
        await respond(send, 200, rename_model(body, renamed), [JSON, *headers])

    async def _relay_events(
        self,
        stream: BackendStream,
        events: EventStream,
        request: BackendRequest,
        attempt: Attempt,
        send: Send,
        headers: list[Header],
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*_SSE, *headers]})
        last = b""
        try:
            while chunk := await stream.read():
                last = events.feed(chunk)
                if events.done or events.error_code is not None:
                    break
                if last:
                    self._note(events, attempt, request.call)
                    await send({"type": "http.response.body", "body": last, "more_body": True})
            else:
                raise UpstreamFailed("The backend ended its answer before it was complete.")
            self._note(events, attempt, request.call)
            if events.error_code is not None:
                attempt.finish("error", events.error_code)
            else:
                attempt.finish("ok")
        except (GatewayError, ValueError) as error:
            failure = error if isinstance(error, GatewayError) else UpstreamFailed(str(error))
            attempt.finish("error", error_code(failure))
            last = error_event(failure)
        # The end is held back until the usage is durable: what the client sees whole is billed.
        await self._meter.durable()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    @staticmethod
    def _note(events: EventStream, attempt: Attempt, call: Call) -> None:
        usage = attempt.usage
        if not usage.reported:
            attempt.estimate = (_estimate(call), max(0, events.events - events.done - 1))
        if usage.completion_tokens or not usage.reported:
            attempt.first_token()


def _estimate(call: Call) -> int:
    """Prompt tokens, guessed from the text."""
    text = call.parameters.get("messages") or call.parameters.get("prompt")
    return (
        len(text)
        if isinstance(text, list) and type(text[0]) is int
        else len(orjson.dumps(text)) // _BYTES_A_TOKEN
    )
