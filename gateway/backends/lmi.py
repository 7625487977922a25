"""Translates a SageMaker container's answer to OpenAI's server-sent events or body.

LMI sends OpenAI's chunks as JSON lines with an empty line for `[DONE]`, or as server-sent events. An older
handler, or `inputs`, sends lines of its own: `{"token", "generated_text", "details"}`. All are accepted.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.errors import UpstreamBroken, UpstreamFailed

logger = logging.getLogger(__name__)

MAX_LINE_BYTES: Final = 4 << 20
_SSE_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_DONE: Final = b"data: [DONE]\n\n"
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_FINISHED: Final = re.compile(rb'"finish_reason"\s*:\s*"')
_MODEL: Final = re.compile(rb'"model"\s*:\s*"[^"]*"')


class LineTranslator:
    """Translates one container's stream, split at any byte."""

    def __init__(self, request_id: str, model: str, *, chat: bool, expected: str = "") -> None:
        """`model` is the model name in every event, `expected` the container's own; "" for any."""
        self._head, self._expected = _Head(request_id, model, chat), expected
        self._rest = b""
        self._sse: bool | None = None
        self._whole = False
        self._ended = False
        self._renamed: tuple[bytes, bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        """Return server-sent events for the lines that `data` completes.

        Raises:
            UpstreamFailed: a line is longer than MAX_LINE_BYTES, or is in no known format.
            UpstreamBroken: another model answers than the expected one.
        """
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > MAX_LINE_BYTES:
            raise UpstreamFailed(f"The backend sent a line of more than {MAX_LINE_BYTES} bytes.")
        if self._sse is None:
            lines = data[:end].lstrip()
            if not lines:
                return b""
            self._sse = lines.startswith(_SSE_FIELDS)
        if self._sse:
            return self._rename(data[:end])
        return self._chunks(data[:end]) or b"".join([self._event(line) for line in data[:end].splitlines()])

    def end(self) -> bytes:
        """Return the remaining events after the stream's end.

        Raises:
            UpstreamFailed: the stream ended before the answer did.
        """
        last = self._event(self._rest) if self._rest.strip() and not self._sse else b""
        self._rest = b""
        if self._sse:
            # A server-sent stream is passed on unchanged; its own [DONE] shows that it was complete.
            return b""
        if not self._whole:
            raise UpstreamFailed("The backend ended its answer before it was complete.")
        return last + (b"" if self._ended else _DONE)

    def _chunks(self, lines: bytes) -> bytes:
        """Return one block of events if all lines are OpenAI's chunks, at half the cost; else b""."""
        block = lines.rstrip(b"\n")
        count = block.count(b"\n") + 1
        if block.count(b'"choices"') != count or b"\n\n" in block or b"\r" in block:
            return b""
        end = len(block)
        while end > 0:
            # The last chunk with choices decides: it is often the very last, or the one before.
            start = block.rfind(b"\n", 0, end) + 1
            if _NO_CHOICES.search(block, start, end) is None:
                self._whole = _FINISHED.search(block, start, end) is not None
                break
            end = start - 1
        self._whole = self._whole or len(lines) - len(block) > 1
        return b"data: " + self._rename(block).replace(b"\n", b"\n\ndata: ") + b"\n\n"

    def _event(self, line: bytes) -> bytes:
        if not line.strip():
            # LMI's [DONE] is sent on at the end only: a line may still follow.
            self._whole = True
            return b""
        if b'"choices"' in line:
            if _NO_CHOICES.search(line) is None:
                self._whole = _FINISHED.search(line) is not None
            return b"data: " + self._rename(line) + b"\n\n"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UpstreamFailed("The backend sent a line that is no JSON.") from error
        if isinstance(value, dict) and "error" in value:
            self._whole = self._ended = True
            return b"data: " + orjson.dumps({"error": _error(value)}) + b"\n\n"
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, dict) and "token" not in value and isinstance(value.get("generated_text"), str):
            # The container does not stream.
            value = {**value, "token": {"text": value["generated_text"]}}
        if isinstance(value, dict) and isinstance(value.get("token"), dict):
            demand_model(value.get("model"), self._expected)
            self._whole = value.get("generated_text") is not None or bool(value.get("details"))
            return b"".join(b"data: " + orjson.dumps(item) + b"\n\n" for item in self._head.chunks(value))
        raise UpstreamFailed("The backend sent a line that is no part of an answer.")

    def _rename(self, lines: bytes) -> bytes:
        """Put the gateway's model name in place of the container's."""
        if self._renamed is None:
            match = _MODEL.search(lines)
            if match is not None or b'"choices"' in lines:
                demand_model(orjson.loads(b"{" + match[0] + b"}")["model"] if match else None, self._expected)
            if match is not None:
                self._renamed = match[0], b'"model":' + orjson.dumps(self._head.model)
        if self._renamed is None or self._renamed[0] == self._renamed[1]:
            return lines
        return lines.replace(*self._renamed)


def demand_model(answered: object, expected: str) -> None:
    """Raise UpstreamBroken if a container answered by another model than the expected one; "" for any."""
    if expected and answered != expected:
        logger.error("a container answered by model %.100r, expected %.100r", answered, expected)
        raise UpstreamBroken("The copy answered by another model than the request's adapter.")


def whole_answer(body: bytes, request_id: str, model: str, *, chat: bool, expected: str = "") -> bytes:
    """Translate an answer that does not stream to OpenAI's form.

    Raises:
        UpstreamFailed: the body is neither OpenAI's nor LMI's.
        UpstreamBroken: another model answers than the expected one.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed("The backend's answer is not JSON.") from error
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and "choices" in value:
        demand_model(value.get("model"), expected)
        return orjson.dumps({**value, "model": model})
    if isinstance(value, dict) and isinstance(value.get("generated_text"), str):
        demand_model(value.get("model"), expected)
        return orjson.dumps(_Head(request_id, model, chat).whole(value))
    raise UpstreamFailed("The backend's answer is neither OpenAI's nor LMI's.")


class _Head:
    """The fields that begin every chunk of one answer."""

    def __init__(self, request_id: str, model: str, chat: bool) -> None:
        self.model = model
        self._chat = chat
        self._fields: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }
        self._first = True

    def chunks(self, line: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return OpenAI's chunks for a line in LMI's own format."""
        text, details = str(line["token"].get("text") or ""), line.get("details")
        ended = line.get("generated_text") is not None or bool(details)
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {**self._fields, "object": kind}
        role = {"role": "assistant"} if self._first else {}
        self._first = False
        piece: dict[str, Any] = {"delta": {**role, "content": text}} if self._chat else {"text": text}
        reason = _reason(details) if ended else None
        items = [{**head, "choices": [{"index": 0, **piece, "logprobs": None, "finish_reason": reason}]}]
        if ended and (usage := _usage(details)):
            items.append({**head, "choices": [], "usage": usage})
        return items

    def whole(self, value: Mapping[str, Any]) -> dict[str, Any]:
        text, details = value["generated_text"], value.get("details")
        piece: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        )
        answer: dict[str, Any] = {
            **self._fields,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [{"index": 0, **piece, "logprobs": None, "finish_reason": _reason(details)}],
        }
        if usage := _usage(details):
            answer["usage"] = usage
        return answer


def _reason(details: object) -> str:
    reason = details.get("finish_reason") if isinstance(details, dict) else None
    return "length" if reason == "length" else "stop"


def _usage(details: object) -> dict[str, int] | None:
    """Return both counts or None: half a report would bill the other half as zero."""
    if not isinstance(details, dict):
        return None
    prompt, completion = details.get("input_length"), details.get("generated_tokens")
    if type(prompt) is not int or type(completion) is not int:
        return None
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _error(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's error object for LMI's `{"error": text, "code": 424}` or for OpenAI's own."""
    error = value["error"]
    if isinstance(error, dict):
        return error
    code = value.get("code")
    return {
        "message": str(error),
        "type": "server_error",
        "code": str(code) if code else "upstream_error",
        "param": value.get("param"),
    }
