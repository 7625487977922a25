"""Runs a validated request through the engine and writes its response."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Protocol

from aiohttp import web

from contracts.adapters.reference import AdapterMix, AdapterRef
from contracts.prompt_progress import PROMPT_PROGRESS_HEADER
from worker_engine.choices import merge
from worker_engine.errors import GenerationFailed, ModelNotFound, RequestError
from worker_engine.http.routes import SERVICE
from worker_engine.openai import schema
from worker_engine.openai.answer import Answer
from worker_engine.openai.origin import TIMEOUT_HEADER, parse_timeout
from worker_engine.openai.prepare import call_form, prompt_tokens, sampling_params
from worker_engine.openai.render import Head
from worker_engine.openai.schema import CompletionRequest
from worker_engine.protocol import GenerateRequest, Origin, TokenDelta
from worker_engine.service import Service
from worker_engine.spans import follow

log = logging.getLogger(__name__)

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_CUSTOM: Final = "X-Amzn-SageMaker-Custom-Attributes"
_CUSTOM_ID: Final = "x-request-id="

Deltas = AsyncGenerator[tuple[int, TokenDelta], None]


class Writer(Protocol):
    """Formats a response in one wire format."""

    content_type: str

    def take(self, index: int, delta: TokenDelta) -> bytes:
        """Return the bytes that a stream sends for a delta of sequence `index`."""

    def end(self) -> bytes:
        """Return the bytes that end a stream."""

    def fail(self, error: RequestError) -> bytes:
        """Return the bytes that a stream sends when the generation fails."""

    def whole(self) -> Any:
        """Return the body of a response that does not stream."""


class JsonLines:
    """OpenAI's events as SageMaker's LMI sends them: one JSON object per line, then an empty line."""

    content_type = "application/jsonlines"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def take(self, index: int, delta: TokenDelta) -> bytes:
        return _lines(self._answer.take(index, delta))

    def end(self) -> bytes:
        return _lines(self._answer.end())

    def fail(self, error: RequestError) -> bytes:
        return _lines(self._answer.fail(error))

    def whole(self) -> Any:
        return self._answer.whole()


def _lines(events: bytes) -> bytes:
    """Convert server-sent events to lines; the JSON of an event contains no line feed."""
    texts = (event.removeprefix(b"data: ") for event in events.split(b"\n\n") if event)
    return b"".join((b"" if text == b"[DONE]" else text) + b"\n" for text in texts)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await serve(request, schema.parse(await request.read(), chat=True))


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    return await serve(request, schema.parse(await request.read(), chat=False))


async def serve(
    request: web.Request, body: CompletionRequest, *, jsonlines: bool = False
) -> web.StreamResponse:
    """Generate the response to an OpenAI body. Raises RequestError before the first byte of a stream."""
    service = request.app[SERVICE]
    body = replace(body, adapter=adapter_of(service, body.model, body.adapter))
    form = call_form(service, body)
    prompts, thought = await prompt_tokens(service, body)
    sampling = await sampling_params(service, body, [len(prompt) for prompt in prompts], form)
    request_id, origin = request_id_of(request), origin_of(request, body.origin)
    chat = body.messages is not None
    thinks = chat and service.engine.thinking is not None
    head = Head(f"{'chatcmpl' if chat else 'cmpl'}-{request_id}", body.model, int(time.time()), chat, thinks)
    answer = Answer(service.tokenizer, body, prompts, form, head)
    requests = [
        GenerateRequest(
            request_id,
            prompt,
            replace(params, choice=choice),
            body.adapter,
            origin,
            place=index * body.n + choice,
            tells_prompt=body.stream and not jsonlines and PROMPT_PROGRESS_HEADER in request.headers,
            thought=thought,
        )
        for index, (prompt, params) in enumerate(zip(prompts, sampling, strict=True))
        for choice in range(body.n)
    ]
    deltas = follow(request, merge([service.generate(item) for item in requests]))
    writer: Writer = JsonLines(answer) if jsonlines else answer
    return await respond(request, deltas, writer, stream=body.stream, request_id=request_id)


async def respond(
    request: web.Request, deltas: Deltas, writer: Writer, *, stream: bool, request_id: str
) -> web.StreamResponse:
    """Send the whole response, or stream each part as it arrives."""
    headers = {"x-request-id": request_id}
    async with aclosing(deltas):
        if stream:
            return await _stream(request, deltas, writer, headers)
        async for index, delta in deltas:
            writer.take(index, delta)
        return web.json_response(writer.whole(), headers=headers)


async def _stream(
    request: web.Request, deltas: Deltas, writer: Writer, headers: dict[str, str]
) -> web.StreamResponse:
    """Stream the deltas. Headers are sent with the first one, so that a refused adapter still gets its HTTP
    status.
    """
    index, delta = await anext(deltas)
    response = web.StreamResponse(
        headers=headers | {"Content-Type": writer.content_type, "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    try:
        if events := writer.take(index, delta):
            await response.write(events)
        async for index, delta in deltas:
            if events := writer.take(index, delta):
                await response.write(events)
        await response.write(writer.end())
    except RequestError as error:
        await response.write(writer.fail(error))
    except ConnectionError:
        raise  # the client disconnected
    except Exception:
        # The status has been sent, so the error can only be reported within the stream.
        log.exception("a stream failed")
        failure = GenerationFailed("internal error; the worker's log has the details")
        await response.write(writer.fail(failure))
    await response.write_eof()
    return response


def request_id_of(request: web.Request) -> str:
    """Return the caller's `x-request-id` if it is safe to echo, otherwise a new id.

    SageMaker does not forward that header; its callers send the id in the custom attributes.
    """
    request_id = request.headers.get("x-request-id", "")
    if not request_id and (custom := request.headers.get(_CUSTOM, "")).startswith(_CUSTOM_ID):
        request_id = custom.removeprefix(_CUSTOM_ID)
    return request_id if _REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex


def origin_of(request: web.Request, origin: Origin) -> Origin:
    """Return the body's origin, with the shorter of its and the header's time limits."""
    if (seconds := parse_timeout(request.headers.get(TIMEOUT_HEADER))) is None:
        return origin
    return replace(origin, timeout=min(seconds, origin.timeout or seconds))


def adapter_of(
    service: Service, model: str, adapter: AdapterRef | AdapterMix | None
) -> AdapterRef | AdapterMix | None:
    """Return the adapter that a body names, by reference or by model name. Raises ModelNotFound."""
    served = service.config.served_model_name
    if adapter is None and model != served:
        return service.registry.get(model, param="model").ref
    if isinstance(adapter, AdapterRef):
        served = adapter.name
    if model != served:
        raise ModelNotFound(
            f"model {model!r} is not served here; this worker serves {served!r}", param="model"
        )
    return adapter
