"""The worker's HTTP API: OpenAI's routes, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from aiohttp import web

from worker_engine import metrics
from worker_engine.choices import merge
from worker_engine.errors import (
    BodyTooLarge,
    GenerationFailed,
    MethodNotAllowed,
    ModelNotFound,
    RequestError,
    RouteNotFound,
    Unauthorized,
)
from worker_engine.openai import schema
from worker_engine.openai.answer import Answer
from worker_engine.openai.origin import TIMEOUT_HEADER, parse_timeout
from worker_engine.openai.prepare import call_form, prompt_tokens, sampling_params
from worker_engine.openai.render import Head, event
from worker_engine.openai.schema import CompletionRequest
from worker_engine.protocol import AdapterRef, GenerateRequest, TokenDelta
from worker_engine.service import Service

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 8 << 20
_OPEN_PATHS: Final = frozenset({"/health", "/ping"})
_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_SERVICE: Final = web.AppKey("service", Service)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(service: Service) -> web.Application:
    """The worker as an aiohttp application; starts and stops the service with itself."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_render_errors, _demand_token])
    app[_SERVICE] = service
    app.router.add_post("/v1/chat/completions", _chat_completions)
    app.router.add_post("/v1/completions", _completions)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _health)
    app.router.add_get("/ping", _health)
    app.router.add_get("/metrics", _metrics)
    app.cleanup_ctx.append(_run_service)
    return app


async def _run_service(app: web.Application) -> AsyncIterator[None]:
    app[_SERVICE].start()
    yield
    await asyncio.to_thread(app[_SERVICE].stop)


@web.middleware
async def _render_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _error_response(error)
    except web.HTTPNotFound:
        return _error_response(RouteNotFound(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _error_response(MethodNotAllowed(f"{request.path} takes {allowed}, not {request.method}"))
    except web.HTTPRequestEntityTooLarge:
        return _error_response(BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes"))
    except web.HTTPException:
        raise
    except Exception:
        log.exception("request failed")
        return _error_response(GenerationFailed("internal error; the worker's log has the details"))


def _error_response(error: RequestError) -> web.Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return web.json_response(error.to_dict(), status=error.status, headers=headers)


@web.middleware
async def _demand_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    token = request.app[_SERVICE].config.fleet_token
    if token and request.path not in _OPEN_PATHS:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise Unauthorized("this worker wants its fleet token as `Authorization: Bearer ...`")
    return await handler(request)


async def _health(request: web.Request) -> web.Response:
    status = request.app[_SERVICE].status
    headers = {} if status == "ok" else {"Retry-After": "1"}
    return web.json_response({"status": status}, status=200 if status == "ok" else 503, headers=headers)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(text=metrics.render(request.app[_SERVICE]), content_type="text/plain")


async def _models(request: web.Request) -> web.Response:
    service = request.app[_SERVICE]
    model = {
        "id": service.config.served_model_name,
        "object": "model",
        "created": 0,
        "owned_by": "graftwork",
        "max_model_len": service.engine.max_model_len,
    }
    return web.json_response({"object": "list", "data": [model]})


async def _chat_completions(request: web.Request) -> web.StreamResponse:
    return await _serve(request, chat=True)


async def _completions(request: web.Request) -> web.StreamResponse:
    return await _serve(request, chat=False)


async def _serve(request: web.Request, *, chat: bool) -> web.StreamResponse:
    service = request.app[_SERVICE]
    body = schema.parse(await request.read(), chat=chat)
    _check_model(service, body)
    form = call_form(service, body)
    prompt = await prompt_tokens(service, body)
    sampling = await sampling_params(service, body, len(prompt), form)
    given = request.headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    head = Head(f"{'chatcmpl' if chat else 'cmpl'}-{request_id}", body.model, int(time.time()), chat)
    answer = Answer(service.tokenizer, body, prompt, form, head)
    origin = body.origin
    if (seconds := parse_timeout(request.headers.get(TIMEOUT_HEADER))) is not None:
        origin = replace(origin, timeout=min(seconds, origin.timeout or seconds))
    choices = [replace(sampling, choice=index) for index in range(body.n)]
    requests = [GenerateRequest(request_id, prompt, item, body.adapter, origin) for item in choices]
    deltas = merge([service.generate(item) for item in requests])
    async with aclosing(deltas):
        if body.stream:
            return await _stream(request, deltas, answer, {"x-request-id": request_id})
        async for index, delta in deltas:
            answer.take(index, delta)
        return web.json_response(answer.whole(), headers={"x-request-id": request_id})


async def _stream(
    request: web.Request,
    deltas: AsyncIterator[tuple[int, TokenDelta]],
    answer: Answer,
    headers: dict[str, str],
) -> web.StreamResponse:
    """Headers go out with the first delta, so that a refused adapter still has its HTTP status."""
    index, delta = await anext(deltas)
    response = web.StreamResponse(
        headers=headers | {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    try:
        if events := answer.take(index, delta):
            await response.write(events)
        async for index, delta in deltas:
            if events := answer.take(index, delta):
                await response.write(events)
        await response.write(answer.end())
    except RequestError as error:
        await response.write(event(error.to_dict()))
    await response.write_eof()
    return response


def _check_model(service: Service, body: CompletionRequest) -> None:
    served = service.config.served_model_name
    if isinstance(body.adapter, AdapterRef):
        served = body.adapter.name
    if body.model != served:
        raise ModelNotFound(
            f"model {body.model!r} is not served here; this worker serves {served!r}", param="model"
        )
