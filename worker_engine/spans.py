"""A request's span at the worker, and in it one each for queue, prefill and decode."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from contracts import genai
from contracts.tracing import Span, Tracing
from worker_engine.http.routes import Handler
from worker_engine.protocol import TokenDelta

Deltas = AsyncGenerator[tuple[int, TokenDelta], None]

_SPAN: Final = web.RequestKey("span", Span)
_ARRIVED: Final = web.RequestKey("arrived", int)
_TRACED: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})


def tracing_middleware(tracing: Tracing) -> Middleware:
    """Gives each request for tokens a span, within its sender's."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in _TRACED:
            return await handler(request)
        now = time.time_ns()
        parent = tracing.remote(request.headers.get("traceparent", ""))
        attributes = {
            "http.request.method": "POST",
            "http.route": request.path,
            **genai.operation_of(request.path),
        }
        span = tracing.span(f"POST {request.path}", "server", attributes, parent=parent, started_ns=now)
        request[_SPAN], request[_ARRIVED] = span, now
        failed = True
        try:
            response = await handler(request)
            span.set({"http.response.status_code": response.status})
            failed = response.status >= 500
            return response
        finally:
            span.end(failed=failed)

    return middleware


def follow(request: web.Request, deltas: Deltas) -> Deltas:
    """The same deltas, and spans of their times if the request has one; else `deltas` itself."""
    span = request.get(_SPAN)
    return deltas if span is None else _followed(span, request[_ARRIVED], deltas)


async def _followed(span: Span, arrived: int, deltas: Deltas) -> Deltas:
    """Several choices are told as one: by the first to have a token, and the last."""
    first = 0
    last: dict[int, TokenDelta] = {}
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                if not first and not delta.reading:
                    first = time.time_ns()
                    _stage(span, "queue", arrived, queued := arrived + round(delta.queued * 1e9))
                    _stage(span, "prefill", min(queued, first), first)
                last[index] = delta
                yield index, delta
    finally:
        if first:
            _stage(span, "decode", first, time.time_ns())
            span.set(genai.first_token(round((first - arrived) / 1e9, 6)))
        span.set(
            genai.usage(
                # The choices of a prompt share it.
                prompt=max((delta.prompt_tokens for delta in last.values()), default=0),
                cached=max((delta.cached_tokens for delta in last.values()), default=0),
                completion=sum(delta.completion_tokens for delta in last.values()),
            )
        )


def _stage(span: Span, name: str, started_ns: int, ended_ns: int) -> None:
    span.child(name, "internal", {}, started_ns=started_ns).end(ended_ns=ended_ns)
