"""A response under construction: its items, usage and final status."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import orjson

from gateway.api.usage import read_usage

_INCOMPLETE: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Response:
    """OpenAI's response object.

    Attributes:
        output: the items so far.
        status: in_progress, completed, incomplete or failed.
    """

    def __init__(self, request_id: str, model: str, echo: Mapping[str, Any]) -> None:
        self.id = f"resp_{request_id.replace('-', '')}"
        self.output: list[dict[str, Any]] = []
        self.status = "in_progress"
        self._model, self._echo = model, echo
        self._created = int(time.time())
        self._reason: str | None = None
        self._error: Mapping[str, str] | None = None
        self._usage: Mapping[str, Any] | None = None

    def take_usage(self, usage: object) -> None:
        """Translate a chat's `usage` to this API's names."""
        if not isinstance(usage, dict):
            return
        if (counts := read_usage(usage)) is None:
            return
        prompt, cached, completion, reasoning = counts
        self._usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + completion,
        }

    def finish(self, reason: object) -> None:
        """Finish by a choice's `finish_reason`, which some backends do not write as a text."""
        self._reason = _INCOMPLETE.get(reason) if isinstance(reason, str) else None
        self.status = "incomplete" if self._reason else "completed"

    def fail(self, message: str) -> None:
        self.status, self._error = "failed", {"code": "server_error", "message": message}

    def to_dict(self) -> dict[str, Any]:
        ended = self.status == "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if ended else None,
            "status": self.status,
            "error": self._error,
            "incomplete_details": {"reason": self._reason} if self._reason else None,
            "model": self._model,
            "output": self.output,
            "usage": self._usage,
            **self._echo,
        }


def message_item() -> dict[str, Any]:
    """Return an assistant's message item without text."""
    item = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "status": "in_progress"}
    return {**item, "role": "assistant", "content": []}


def reasoning_item() -> dict[str, Any]:
    """Return a reasoning item without text; the thought itself is its content, and there is no summary."""
    item = {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "status": "in_progress"}
    return {**item, "summary": [], "content": []}


def reasoning_part() -> dict[str, Any]:
    return {"type": "reasoning_text", "text": ""}


def thought_of(message: Mapping[str, Any]) -> str:
    """Return the thought's text in a chat's message or delta, under either of its names; "" for none."""
    text = message.get("reasoning_content") or message.get("reasoning")
    return text if isinstance(text, str) else ""


def text_logprobs(logprobs: list[dict[str, Any]], text: str, thought: str = "") -> list[dict[str, Any]]:
    """Return the log probabilities of a text's tokens.

    Args:
        logprobs: of a thought, the text and function calls, in this order.
        thought: the thought; the marks around it have tokens too.
    """
    pieces = [_token_bytes(item) for item in logprobs]
    whole, wanted = b"".join(pieces), text.encode()
    after = whole.find(thought.encode()) + len(thought.encode()) if thought else 0
    # The marks' own bytes may be missing, so the text is searched.
    start = max(after, whole.find(wanted, after))
    ends = list(accumulate(map(len, pieces)))
    return [item for item, end in zip(logprobs, ends, strict=True) if start < end <= start + len(wanted)]


def _token_bytes(item: Mapping[str, Any]) -> bytes:
    found = item.get("bytes")
    text: str = item["token"]
    return bytes(found) if isinstance(found, list) else text.encode()


def text_part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def call_item(call_id: str | None, name: str) -> dict[str, Any]:
    """Return a function call item without arguments."""
    number = uuid.uuid4().hex
    item = {"id": f"fc_{number}", "type": "function_call", "status": "in_progress"}
    return {**item, "call_id": call_id or f"call_{number[:24]}", "name": name, "arguments": ""}


def encode(event: Mapping[str, Any]) -> bytes:
    """Format a server-sent event under its own name."""
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event))
