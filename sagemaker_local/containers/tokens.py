"""A worker's stream as single tokens, which is how TGI and Triton count and send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `text` is "" while it completes no character."""

    id: int
    text: str
    logprobs: Any = None


@dataclass(slots=True)
class Ending:
    """How a stream ended, and its counts."""

    reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0


async def tokens(values: AsyncIterator[Any], ending: Ending) -> AsyncIterator[Token]:
    """Yield a stream's tokens; `ending` is filled by its end."""
    async for value in values:
        usage = value.get("usage") or {}
        ending.prompt_tokens = usage.get("prompt_tokens", ending.prompt_tokens)
        ending.completion_tokens = usage.get("completion_tokens", ending.completion_tokens)
        for choice in value.get("choices", ()):
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            ids = choice.get("token_ids") or []
            for number in ids[:-1]:
                yield Token(number, "")
            if ids or text:
                yield Token(ids[-1] if ids else 0, text, choice.get("logprobs"))
            if (reason := choice.get("finish_reason")) is not None:
                ending.reason = reason
