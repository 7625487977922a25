"""Translates TGI's server-sent events, of chats and of its own form, to OpenAI's.

TGI answers 200 before it checks a request: errors arrive as events. Its text contains the stop sequence that
ended it, and its last event alone counts tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.backends.containers.base import DONE
from gateway.backends.containers.event_lines import EventLines
from gateway.backends.containers.stop_text import StopText
from gateway.backends.upstream import refused
from gateway.errors import GatewayError, UpstreamBusy, UpstreamFailed

_REASONS: Final = {"length": "length", "eos_token": "stop", "stop_sequence": "stop", "stop": "stop"}
_REFUSED_TYPES: Final = frozenset({"validation", "template_error", "missing_template_variable", "tool_error"})
_REFUSED_TEXTS: Final = (
    "Input validation error",
    "Template error",
    "Missing template variable",
    "Tool error",
)
_OVERLOADED: Final = "Model is overloaded"


class TgiTranslator:
    """Translates one stream."""

    def __init__(self, request_id: str, model: str, stops: Sequence[str], *, chat: bool) -> None:
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._chat, self._first = chat, True
        self._lines, self._text = EventLines(), StopText(stops)
        self._logprobs: list[Any] = []
        self._finished = False
        self._failure: GatewayError | None = None

    def feed(self, data: bytes) -> bytes:
        return self._translate(self._lines.feed(data))

    def end(self) -> bytes:
        last = self._translate(self._lines.end())
        if self._failure is not None:
            raise self._failure
        if not self._finished:
            raise UpstreamFailed("The backend ended its answer before it was complete.")
        return last + DONE

    def _translate(self, values: Sequence[Any]) -> bytes:
        """Return the events before an error, which are billed; the error is raised afterwards."""
        if self._failure is not None:
            raise self._failure
        events: list[bytes] = []
        for value in values:
            if value is None:
                continue
            if "error" in value:
                self._failure = _failure(value)
                break
            events += [b"data: " + orjson.dumps(item) + b"\n\n" for item in self._chunks(value)]
        if self._failure is not None and not events:
            raise self._failure
        return b"".join(events)

    def _chunks(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        if isinstance(value.get("token"), dict):
            token, details = value["token"], value.get("details")
            text = "" if token.get("special") else str(token.get("text") or "")
            reason = details.get("finish_reason") if isinstance(details, dict) else None
            items = self._piece(text, reason, None)
            usage = details and {
                "prompt_tokens": details.get("input_length"),
                "completion_tokens": details.get("generated_tokens"),
            }
        elif isinstance(value.get("choices"), list):
            items = [item for choice in value["choices"] for item in self._choice(choice)]
            usage = value.get("usage")
        else:
            raise UpstreamFailed("The backend sent an event that is no part of an answer.")
        return items + ([self._usage(usage)] if isinstance(usage, dict) else [])

    def _choice(self, choice: Any) -> list[dict[str, Any]]:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            raise UpstreamFailed("The backend sent an event that is no part of an answer.")
        return self._piece(
            str(delta.get("content") or ""), choice.get("finish_reason"), choice.get("logprobs")
        )

    def _piece(self, text: str, reason: object, logprobs: object) -> list[dict[str, Any]]:
        """Return the chunk of one token; none while its text may belong to a stop sequence."""
        if isinstance(logprobs, dict):
            self._logprobs += logprobs.get("content") or []
        shown = self._text.push(text)
        if reason is not None:
            shown += self._text.end(stopped=reason == "stop_sequence")
            self._finished = True
        if not shown and reason is None and not self._first:
            return []
        kept, self._logprobs = self._logprobs, []
        piece: dict[str, Any] = {"text": shown}
        if self._chat:
            piece = {"delta": {**({"role": "assistant"} if self._first else {}), "content": shown}}
        self._first = False
        choice = {
            "index": 0,
            **piece,
            "logprobs": {"content": kept} if kept else None,
            "finish_reason": _REASONS.get(str(reason), "stop") if reason is not None else None,
        }
        return [{**self._head, "choices": [choice]}]

    def _usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(prompt) is not int or type(completion) is not int:
            raise UpstreamFailed("The backend's report of its tokens is malformed.")
        counts = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        return {**self._head, "choices": [], "usage": counts}


def _failure(value: Mapping[str, Any]) -> GatewayError:
    """Return the client's error for an error event: `{"error", "error_type"}`, or OpenAI's object.

    OpenAI's object always states the status 422, so its text decides.
    """
    error, kind = value["error"], value.get("error_type")
    text = str(error.get("message")) if isinstance(error, dict) else str(error)
    if kind in _REFUSED_TYPES or text.startswith(_REFUSED_TEXTS):
        return refused(422, {"message": text})
    if kind == "overloaded" or text.startswith(_OVERLOADED):
        return UpstreamBusy("1")
    return UpstreamFailed("The backend failed on this request.")
