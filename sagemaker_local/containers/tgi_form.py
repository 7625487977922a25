"""TGI's /invocations in front of the worker: its own form, and chats in OpenAI's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from sagemaker_local.containers.contract import Container
from sagemaker_local.containers.engine import Engine, EngineRefused
from sagemaker_local.containers.tokens import Ending, Token, tokens

_NO_VARIANT: Final = (
    "Failed to deserialize the JSON body into the target type: data did not match any variant of untagged "
    "enum SagemakerRequest"
)
_DEFAULT_TOKENS: Final = 100
_VERSION: Final = re.compile(r"tgi(\d+)\.")
_CONTEXT: Final = re.compile(r"maximum context length is (\d+)")
_COPIED: Final = ("top_p", "top_k", "repetition_penalty", "frequency_penalty", "seed")
_PATHS: Final = {"generate": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class TgiRequest:
    """A request that TGI accepted: its kind, the worker's body, and what shapes the answer."""

    kind: str
    body: dict[str, Any]
    stream: bool
    details: bool = True
    usage: bool = False
    prefix: str = ""


class TgiForm:
    """Answers /invocations."""

    def __init__(self, container: Container, engine: Engine) -> None:
        self._engine = engine
        version = _VERSION.search(container.image)
        self._version = int(version[1]) if version else 3
        self._most_stops = container.integer("MAX_STOP_SEQUENCES") or 4
        self._model = container.environment["HF_MODEL_ID"]

    async def invocations(self, request: web.Request) -> web.StreamResponse:
        try:
            value = json.loads(await request.read())
        except ValueError as error:
            return web.Response(status=400, text=f"Failed to parse the request body as JSON: {error}")
        wanted = self._read(value)
        if wanted is None:
            return web.Response(status=422, text=_NO_VARIANT)
        return await (self._stream(request, wanted) if wanted.stream else self._whole(wanted))

    def _read(self, value: Any) -> TgiRequest | None:
        """Return the request; None if its body has none of TGI's forms."""
        if not isinstance(value, dict):
            return None
        if isinstance(value.get("inputs"), str):
            return self._generate(value)
        return self._chat(value) if isinstance(value.get("messages"), list) else None

    def _generate(self, value: dict[str, Any]) -> TgiRequest | None:
        given = value.get("parameters") or {}
        if not isinstance(given, dict) or not _are_texts(given.get("stop", [])):
            return None
        body: dict[str, Any] = {
            "model": self._engine.name_of(given.get("adapter_id")),
            "prompt": value["inputs"],
            "max_tokens": given.get("max_new_tokens") or _DEFAULT_TOKENS,
            "temperature": (given.get("temperature") or 1.0) if given.get("do_sample") else 0,
            "logprobs": 0,
            **_copied(given),
        }
        prefix = value["inputs"] if given.get("return_full_text") else ""
        return TgiRequest(
            "generate", body, bool(value.get("stream")), given.get("details", False), prefix=prefix
        )

    def _chat(self, value: dict[str, Any]) -> TgiRequest | None:
        bias, options = value.get("logit_bias"), value.get("stream_options") or {}
        if not _are_texts(value.get("stop") or []) or not isinstance(bias, list | None):
            return None
        body: dict[str, Any] = {
            "model": self._engine.name_of(value.get("model")),
            "messages": value["messages"],
            **_copied({name: value.get(name) for name in (*_COPIED, "stop") if name != "top_k"}),
        }
        for name in ("temperature", "logprobs", "top_logprobs"):
            if value.get(name) is not None:
                body[name] = value[name]
        limit = value.get("max_tokens") or (_DEFAULT_TOKENS if self._version < 3 else None)
        body |= {} if limit is None else {"max_tokens": limit}
        grammar = value.get("response_format")
        if isinstance(grammar, dict):
            body[f"guided_{grammar['type']}"] = grammar["value"]
        return TgiRequest("chat", body, bool(value.get("stream")), usage=bool(options.get("include_usage")))

    def _check(self, wanted: TgiRequest) -> None:
        """Raise EngineRefused for a request that TGI's own bounds exclude."""
        if (count := len(wanted.body.get("stop", ()))) > self._most_stops:
            text = f"`stop` supports up to {self._most_stops} stop sequences. Given: {count}"
            raise EngineRefused(400, text)

    async def _stream(self, request: web.Request, wanted: TgiRequest) -> web.StreamResponse:
        """Answer with events; TGI answers 200 before it checks a request."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            async for event in self._events(wanted):
                await response.write(_event(event))
        except EngineRefused as error:
            text, kind = _error(error)
            described = {"error": text, "error_type": kind}
            if wanted.kind == "chat":
                described = {"error": {"message": text, "http_status_code": 422}}  # type: ignore[dict-item]
            if wanted.kind == "generate" or self._version >= 3:
                await response.write(_event(described))
        if wanted.kind == "chat":
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(self, wanted: TgiRequest) -> web.Response:
        text, ending, last = "", Ending(), None
        try:
            self._check(wanted)
            async with self._engine.stream(_PATHS[wanted.kind], wanted.body) as values:
                async for token in tokens(values, ending):
                    text, last = text + token.text, token
        except EngineRefused as error:
            message, kind = _error(error)
            status = 422 if kind == "validation" else 424
            return web.json_response({"error": message, "error_type": kind}, status=status)
        if wanted.kind == "generate":
            answer: dict[str, Any] = {"generated_text": wanted.prefix + text}
            if wanted.details:
                counts = {"generated_tokens": ending.completion_tokens, "prefill": [], "tokens": []}
                answer["details"] = {"finish_reason": _reason(wanted, ending, text), "seed": None, **counts}
            return web.json_response([answer])
        said = {"role": "assistant", "content": text}
        choice = {
            "index": 0,
            "message": said,
            "logprobs": None,
            "finish_reason": _reason(wanted, ending, text),
        }
        if last is not None and wanted.body.get("logprobs"):
            choice["logprobs"] = last.logprobs
        return web.json_response(
            {**self._head("chat.completion"), "choices": [choice], "usage": _usage(ending)}
        )

    async def _events(self, wanted: TgiRequest) -> AsyncIterator[dict[str, Any]]:
        """Yield one event for each token; the last one says how the text ended."""
        self._check(wanted)
        ending, held, text, index = Ending(), None, "", 0
        async with self._engine.stream(_PATHS[wanted.kind], wanted.body) as values:
            async for token in tokens(values, ending):
                if held is not None:
                    yield self._token(wanted, held, index, None, "")
                held, index, text = token, index + 1, text + token.text
        yield self._token(wanted, held or Token(0, ""), index, ending, text)
        if wanted.kind == "chat" and wanted.usage and self._version >= 3:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(ending)}

    def _token(
        self, wanted: TgiRequest, token: Token, index: int, ending: Ending | None, text: str
    ) -> dict[str, Any]:
        if wanted.kind == "generate":
            known = (token.logprobs or {}).get("token_logprobs") or [0.0]
            shown = {"id": token.id, "text": token.text, "logprob": known[-1], "special": False}
            last = ending is not None
            details = ending and {
                "finish_reason": _reason(wanted, ending, text),
                "generated_tokens": ending.completion_tokens,
                "seed": None,
                "input_length": ending.prompt_tokens,
            }
            return {
                "index": index,
                "token": shown,
                "generated_text": wanted.prefix + text if last else None,
                "details": details if wanted.details else None,
            }
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": token.text},
            "logprobs": token.logprobs,
            "finish_reason": None if ending is None else _reason(wanted, ending, text),
        }
        with_usage = self._version < 3 and wanted.usage and ending is not None
        usage = _usage(ending) if with_usage and ending is not None else None
        return {**self._head("chat.completion.chunk"), "choices": [choice], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"object": kind, "id": "", "created": int(time.time()), "model": self._model}


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _copied(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: given[name] for name in _COPIED if given.get(name) is not None}
    if stops := given.get("stop"):
        # TGI's text contains the stop sequence that ended it.
        found |= {"stop": stops, "include_stop_str_in_output": True}
    return found


def _reason(wanted: TgiRequest, ending: Ending, text: str) -> str:
    """Return TGI's finish reason; chats have OpenAI's word for the end of the sequence alone."""
    if ending.reason == "length":
        return "length"
    if any(text.endswith(stop) for stop in wanted.body.get("stop", ())):
        return "stop_sequence"
    return "stop" if wanted.kind == "chat" else "eos_token"


def _usage(ending: Ending) -> dict[str, int]:
    total = ending.prompt_tokens + ending.completion_tokens
    return {
        "prompt_tokens": ending.prompt_tokens,
        "completion_tokens": ending.completion_tokens,
        "total_tokens": total,
    }


def _error(error: EngineRefused) -> tuple[str, str]:
    """Return text and type of TGI's error for the worker's."""
    if error.status == 429:
        return "Model is overloaded", "overloaded"
    if error.status >= 500:
        return f"Request failed during generation: {error}", "generation"
    if match := _CONTEXT.search(str(error)):
        text = f"`inputs` tokens + `max_new_tokens` must be <= {match[1]}. Given: {error}"
        return f"Input validation error: {text}", "validation"
    return f"Input validation error: {error}", "validation"
