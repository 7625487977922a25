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
from worker_engine.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    GenerationFailed,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    RequestError,
    RouteNotFound,
    Unauthorized,
)
from worker_engine.openai import schema
from worker_engine.openai.origin import TIMEOUT_HEADER, parse_timeout
from worker_engine.openai.render import DONE, Renderer, event
from worker_engine.openai.schema import CompletionRequest
from worker_engine.protocol import GenerateRequest, SamplingParams, TokenDelta
from worker_engine.service import Service

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 8 << 20
COMPLETION_DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default for /v1/completions; a chat goes on to the context's end."""
_INLINE_CHARS: Final = 16384
"""Prompts up to this length are tokenized on the event loop (about 2 ms); longer ones in a thread."""
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
    prompt = await _tokenize(service, body)
    sampling = _sampling(service, body, len(prompt), chat=chat)
    given = request.headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    prefix = "chatcmpl" if chat else "cmpl"
    renderer = Renderer(f"{prefix}-{request_id}", body.model, int(time.time()), chat, body.continuous_usage)
    origin = body.origin
    if (seconds := parse_timeout(request.headers.get(TIMEOUT_HEADER))) is not None:
        origin = replace(origin, timeout=min(seconds, origin.timeout or seconds))
    deltas = service.generate(GenerateRequest(request_id, prompt, sampling, body.adapter, origin))
    headers = {"x-request-id": request_id}
    async with aclosing(deltas):
        if body.stream:
            return await _stream(request, deltas, renderer, body, headers)
        texts: list[str] = []
        async for delta in deltas:
            texts.append(delta.text)
        return web.json_response(renderer.whole("".join(texts), delta), headers=headers)


async def _stream(
    request: web.Request,
    deltas: AsyncIterator[TokenDelta],
    renderer: Renderer,
    body: CompletionRequest,
    headers: dict[str, str],
) -> web.StreamResponse:
    """Headers go out with the first delta, so that a refused adapter still has its HTTP status."""
    delta = await anext(deltas)
    response = web.StreamResponse(
        headers=headers | {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    if renderer.chat:
        await response.write(renderer.role(delta.prompt_tokens))
    try:
        while True:
            if delta.text or delta.finish_reason is not None:
                await response.write(renderer.chunk(delta))
            if delta.finish_reason is not None:
                break
            delta = await anext(deltas)
        await response.write((renderer.final_usage(delta) if body.include_usage else b"") + DONE)
    except RequestError as error:
        await response.write(event(error.to_dict()))
    await response.write_eof()
    return response


def _check_model(service: Service, body: CompletionRequest) -> None:
    served = body.adapter.name if body.adapter is not None else service.config.served_model_name
    if body.model != served:
        raise ModelNotFound(
            f"model {body.model!r} is not served here; this worker serves {served!r}", param="model"
        )


async def _tokenize(service: Service, body: CompletionRequest) -> tuple[int, ...]:
    if isinstance(body.prompt, tuple):
        if not body.prompt or not all(0 <= item < service.model.vocab_size for item in body.prompt):
            raise InvalidRequest(
                f"prompt must hold token ids from 0 to {service.model.vocab_size - 1}", param="prompt"
            )
        return body.prompt
    chat = body.messages is not None
    text = service.tokenizer.render_chat(body.messages) if body.messages is not None else body.prompt
    if len(text) <= _INLINE_CHARS:
        ids = service.tokenizer.encode(text, add_special_tokens=not chat)
    else:
        ids = await asyncio.to_thread(service.tokenizer.encode, text, add_special_tokens=not chat)
    if not ids:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    return tuple(ids)


def _sampling(service: Service, body: CompletionRequest, prompt_tokens: int, *, chat: bool) -> SamplingParams:
    """Raises ContextLengthExceeded when prompt and completion fit neither the context nor the KV cache."""
    limit = service.engine.max_model_len
    room = limit - prompt_tokens
    max_tokens = body.max_tokens or (
        max(room, 1) if chat else min(COMPLETION_DEFAULT_MAX_TOKENS, max(room, 1))
    )
    param = "messages" if chat else "prompt"
    if max_tokens > room:
        raise ContextLengthExceeded(
            f"this model's context is {limit} tokens, but the request asks for {prompt_tokens + max_tokens}: "
            f"{prompt_tokens} in the prompt and {max_tokens} for the completion. Shorten the prompt or lower "
            "max_tokens",
            param=param,
        )
    if not service.engine.fits(prompt_tokens + max_tokens):
        if body.max_tokens is None and service.engine.fits(prompt_tokens + 1):
            max_tokens = service.engine.pool_tokens - prompt_tokens
        else:
            raise ContextLengthExceeded(
                f"this worker's KV cache holds {service.engine.pool_tokens} tokens, but the request asks for "
                f"{prompt_tokens + max_tokens}: {prompt_tokens} in the prompt and {max_tokens} for the "
                "completion",
                param=param,
            )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        stop=body.stop,
        ignore_eos=body.ignore_eos,
    )
