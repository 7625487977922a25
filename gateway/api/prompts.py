"""Prompts of a request: a text, a list of token ids, or a list of either, with a token estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.openai.bounds import MAX_TOKENS
from gateway.api.image_tokens import image_tokens

MAX_SEQUENCES: Final = 256
"""Most prompts times choices of one completion request."""
MAX_INPUTS: Final = 2048
"""Most inputs of one embeddings request, as at OpenAI."""
BYTES_A_TOKEN: Final = 4
"""For estimates, before or without a backend's count."""
MESSAGE_TOKENS: Final = 4
"""Tokens that a chat template adds around a message."""


def check_prompts(value: Any, most: int) -> str | None:
    """Return what was expected if `value` is not one prompt or up to `most` prompts of one kind."""
    prompts = prompts_of(value)
    right = 0 < len(prompts) <= most and value != ""
    if right and all(type(prompt) is str for prompt in prompts):
        return None
    if right and all(_are_ids(prompt) for prompt in prompts):
        return None
    return f"a string, a list of token ids, or a list of 1 to {most} of either"


def prompts_of(value: Any) -> list[Any]:
    """Return the prompts as a list; a list of numbers is one prompt."""
    if isinstance(value, list) and not (value and type(value[0]) is int):
        return value
    return [value]


def _are_ids(value: Any) -> bool:
    right = type(value) is list and 0 < len(value) <= MAX_TOKENS
    return right and set(map(type, value)) == {int} and min(value) >= 0


def num_prompts(parameters: Mapping[str, Any]) -> int:
    """Return the number of prompts in a checked request; a chat has one."""
    return len(prompts_of(parameters.get("prompt") or parameters.get("input")))


def estimate_tokens(parameters: Mapping[str, Any]) -> int:
    """Estimate the prompt tokens of a checked request: ids are counted, text is four bytes a token."""
    prompts = parameters.get("prompt") or parameters.get("input")
    if prompts is None:
        tools = parameters.get("tools")
        return (len(orjson.dumps(tools)) // BYTES_A_TOKEN if tools else 0) + sum(
            map(_message_tokens, parameters.get("messages") or ())
        )
    return sum(
        len(prompt) if type(prompt) is list else len(prompt.encode(errors="replace")) // BYTES_A_TOKEN + 1
        for prompt in prompts_of(prompts)
    )


def _message_tokens(message: Mapping[str, Any]) -> int:
    content, calls = message.get("content"), message.get("tool_calls")
    tokens = MESSAGE_TOKENS + (len(orjson.dumps(calls)) // BYTES_A_TOKEN if calls else 0)
    if isinstance(content, str):
        return tokens + len(content.encode(errors="replace")) // BYTES_A_TOKEN
    return tokens + sum(map(_part_tokens, content if isinstance(content, list) else ()))


def _part_tokens(part: object) -> int:
    """Estimate the tokens of a text or image part; any other kind counts by its JSON."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "image_url" and isinstance(part.get("image_url"), dict):
        return image_tokens(part["image_url"])
    text = part.get("text") if isinstance(part, dict) and kind == "text" else None
    return (
        len(text.encode(errors="replace") if isinstance(text, str) else orjson.dumps(part)) // BYTES_A_TOKEN
    )
