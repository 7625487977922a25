"""OpenAI's answers: whole bodies, and chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from worker_engine.protocol import FinishReason, TokenDelta

DONE = b"data: [DONE]\n\n"


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def usage(delta: TokenDelta) -> dict[str, Any]:
    """Tokens so far, as `delta` counts them."""
    return {
        "prompt_tokens": delta.prompt_tokens,
        "completion_tokens": delta.completion_tokens,
        "total_tokens": delta.prompt_tokens + delta.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": delta.cached_tokens},
    }


def _finish(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value


@dataclass(frozen=True, slots=True)
class Renderer:
    """Answers to one request.

    Attributes:
        id: the answer's id.
        model: as the caller named it.
        created: Unix seconds.
        continuous_usage: every chunk ends with `usage`, as its last key.
    """

    id: str
    model: str
    created: int
    chat: bool
    continuous_usage: bool = False

    def role(self, prompt_tokens: int) -> bytes:
        """The first event of a chat stream."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._chunk([choice], TokenDelta("", "", prompt_tokens=prompt_tokens))

    def chunk(self, delta: TokenDelta) -> bytes:
        reason = _finish(delta.finish_reason)
        if self.chat:
            content = {"content": delta.text} if delta.text else {}
            return self._chunk([{"index": 0, "delta": content, "finish_reason": reason}], delta)
        choice = {"index": 0, "text": delta.text, "logprobs": None, "finish_reason": reason}
        return self._chunk([choice], delta)

    def final_usage(self, delta: TokenDelta) -> bytes:
        """The event before [DONE] that `include_usage` asks for."""
        return event(self._head(stream=True) | {"choices": [], "usage": usage(delta)})

    def whole(self, text: str, last: TokenDelta) -> dict[str, Any]:
        """The body of a request that does not stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": _finish(last.finish_reason)}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return self._head(stream=False) | {"choices": [choice], "usage": usage(last)}

    def _chunk(self, choices: list[dict[str, Any]], delta: TokenDelta) -> bytes:
        value = self._head(stream=True) | {"choices": choices}
        if self.continuous_usage:
            value["usage"] = usage(delta)
        return event(value)

    def _head(self, *, stream: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion" + (".chunk" if stream else "")
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
