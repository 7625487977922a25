"""Tokens of an answer: the backend's report, or an estimate from its text where there is none.

| a backend's `usage` | billed as |
|---|---|
| whole numbers, also spelled `11.0` or `"11"`; `input_tokens` and `output_tokens` | what it says |
| `completion_tokens` missing, `total_tokens` there | their difference |
| a count missing, null, negative, broken or beyond MAX_REPORTED; no prompt tokens | not used |

An unused report is replaced by an estimate from the text, and the usage event says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.openai.kinds import MAX_TOKENS
from gateway.api.prompts import BYTES_A_TOKEN, MAX_SEQUENCES

MAX_REPORTED: Final = MAX_SEQUENCES * MAX_TOKENS
"""Most tokens that one accepted request can use."""
_TEXT: Final = re.compile(
    rb'"(?:content|text|arguments|name|refusal|reasoning_content|reasoning)"\s*:\s*"((?:[^"\\]++|\\.)*+)"'
)
"""Matches the model's text in whole answers and in events; a quotation mark within a text is escaped."""


class Usage:
    """Tokens that the backend has reported so far. `reported` is True after the first report."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens", "reasoning_tokens", "reported")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.reported = False

    def clear(self) -> None:
        """Reset to the state before any report."""
        self.__init__()  # type: ignore[misc]

    def take(self, usage: Mapping[str, Any]) -> None:
        """Apply a `usage` object if its counts are valid; counts never fall."""
        counts = read_usage(usage)
        if counts is None:
            return
        prompt, cached, completion, reasoning = counts
        self.prompt_tokens = max(self.prompt_tokens, prompt)
        self.completion_tokens = max(self.completion_tokens, completion)
        self.cached_tokens = min(self.prompt_tokens, max(self.cached_tokens, cached))
        self.take_reasoning(reasoning)
        self.reported = True

    def take_reasoning(self, tokens: int) -> None:
        """Apply a count of the thought's tokens, among those of the completion."""
        self.reasoning_tokens = min(self.completion_tokens, max(self.reasoning_tokens, tokens))


def read_usage(usage: Mapping[str, Any]) -> tuple[int, int, int, int] | None:
    """Return (prompt tokens, cached ones among them, completion tokens, those of the thought among them).

    None if one of the first three is invalid. Many servers do not count the thought's tokens: 0.
    """
    prompt = token_count(usage.get("prompt_tokens", usage.get("input_tokens")))
    given = usage.get("completion_tokens", usage.get("output_tokens"))
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = token_count((details.get("cached_tokens") if isinstance(details, dict) else None) or 0)
    if given is None and prompt is not None:
        # Embeddings have no completion tokens, and some servers state only the total.
        total = token_count(usage.get("total_tokens"))
        given = None if total is None else total - prompt
    completion = token_count(given)
    if not prompt or cached is None or completion is None:
        return None
    return prompt, min(prompt, cached), completion, min(completion, _reasoning(usage))


def _reasoning(usage: Mapping[str, Any]) -> int:
    details = usage.get("completion_tokens_details", usage.get("output_tokens_details"))
    return token_count(details.get("reasoning_tokens") if isinstance(details, dict) else None) or 0


def token_count(value: object) -> int | None:
    """Parse a token count in any server's spelling; None for anything else."""
    if isinstance(value, str):
        value = int(value) if len(value) < 12 and value.isascii() and value.isdecimal() else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_REPORTED else None


def text_bytes(answer: bytes) -> int:
    """Return the UTF-8 bytes of the model's text in a whole answer's JSON, or in a stream's events."""
    return sum(len(_unescaped(text)) if b"\\" in text else len(text) for text in _TEXT.findall(answer))


def _unescaped(text: bytes) -> bytes:
    try:
        return str(orjson.loads(b'"%b"' % text)).encode()
    except orjson.JSONDecodeError:
        return text  # a character cut in two


def estimate_completion(answer_bytes: int) -> int:
    """Estimate the tokens of an answer from its text's bytes."""
    return -(-answer_bytes // BYTES_A_TOKEN)
