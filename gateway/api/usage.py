"""Tokens of an answer: the backend's report, or an estimate from its text where there is none.

| a backend's `usage` | billed as |
|---|---|
| whole numbers, also spelled `11.0` or `"11"`; `input_tokens` and `output_tokens` | what it says |
| `completion_tokens` missing, `total_tokens` there | their difference |
| reasoning tokens beside the completion's, as the total shows | their sum |
| more reasoning tokens than the completion has | no reasoning tokens |
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

    __slots__ = (
        "_derived_reasoning",
        "_stated_reasoning",
        "cached_tokens",
        "completion_tokens",
        "prompt_tokens",
        "reported",
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._stated_reasoning = self._derived_reasoning = 0
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
        self._stated_reasoning = max(self._stated_reasoning, reasoning)
        self.reported = True

    def derive_reasoning(self, tokens: int) -> None:
        """Apply a count of the thought's tokens that the gateway derived; a positive report replaces it."""
        self._derived_reasoning = max(self._derived_reasoning, tokens)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thought, among those of the completion."""
        return min(self.completion_tokens, self._stated_reasoning or self._derived_reasoning)


def read_usage(usage: Mapping[str, Any]) -> tuple[int, int, int, int] | None:
    """Return (prompt tokens, cached ones among them, completion tokens, those of the thought among them).

    None if one of the first three is invalid. Many servers do not count the thought's tokens: 0. Some count
    them beside the completion's, which the total shows: then they are added.
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
    reasoning = _reasoning(usage)
    if reasoning and token_count(usage.get("total_tokens")) == prompt + completion + reasoning:
        completion = min(completion + reasoning, MAX_REPORTED)
    return prompt, min(prompt, cached), completion, reasoning if reasoning <= completion else 0


def prompt_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of a request that generates nothing; some servers state the total alone."""
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    return {
        **usage,
        "prompt_tokens": usage.get("total_tokens") if prompt is None else prompt,
        "completion_tokens": 0,
    }


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
