"""The number of a request's prompts, and an estimate of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.openai.kinds import prompts_of

MAX_SEQUENCES: Final = 256
"""Most prompts times choices of one completion request."""
BYTES_A_TOKEN: Final = 4
"""For estimates, before or without a backend's count."""
MESSAGE_TOKENS: Final = 4
"""Tokens that a chat template adds around a message."""


def num_prompts(parameters: Mapping[str, Any]) -> int:
    """Return the number of prompts in a checked request; a chat has one."""
    return len(prompts_of(parameters.get("prompt") or parameters.get("input")))


def pair_bytes(parameters: Mapping[str, Any]) -> list[int]:
    """Return the bytes of each pair of texts that a score or rerank reads; none for other requests.

    The texts are lists in `text_1` and `text_2`, or `query` with a list of `documents`.
    """
    if "query" in parameters:
        first, second = [parameters["query"]], parameters["documents"]
    elif "text_1" in parameters:
        first, second = parameters["text_1"], parameters["text_2"]
    else:
        return []
    lengths = [len(text.encode(errors="replace")) for text in first]
    if len(lengths) == 1:
        lengths *= len(second)
    return [length + len(text.encode(errors="replace")) for length, text in zip(lengths, second, strict=True)]


def estimate_tokens(parameters: Mapping[str, Any]) -> int:
    """Estimate a checked request's prompt tokens: ids count, text is four bytes a token, images are 0."""
    if pairs := pair_bytes(parameters):
        return sum(length // BYTES_A_TOKEN + 1 for length in pairs)
    prompts = parameters.get("prompt") or parameters.get("input")
    if prompts is None:
        tools = parameters.get("tools")
        # Templates write tools and arguments into the prompt.
        extra = [tools, parameters.get("chat_template_kwargs")]
        return sum(len(orjson.dumps(item)) // BYTES_A_TOKEN + 1 for item in extra if item) + sum(
            map(_message_tokens, parameters.get("messages") or ())
        )
    return sum(
        len(prompt) if type(prompt) is list else len(prompt.encode(errors="replace")) // BYTES_A_TOKEN + 1
        for prompt in prompts_of(prompts)
    )


def _message_tokens(message: Mapping[str, Any]) -> int:
    content, calls = message.get("content"), message.get("tool_calls")
    tokens = MESSAGE_TOKENS + (len(orjson.dumps(calls)) // BYTES_A_TOKEN if calls else 0)
    # Templates read one of the two names: the larger is reserved.
    thoughts = [message.get("reasoning_content"), message.get("reasoning")]
    sizes = [len(text.encode(errors="replace")) for text in thoughts if isinstance(text, str)]
    tokens += max(sizes, default=0) // BYTES_A_TOKEN
    if isinstance(content, str):
        return tokens + len(content.encode(errors="replace")) // BYTES_A_TOKEN
    return tokens + sum(map(_part_tokens, content if isinstance(content, list) else ()))


def _part_tokens(part: object) -> int:
    """Estimate the tokens of a text part; any other kind counts by its JSON, except an image."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "image_url":
        return 0  # counted by the base model's rule
    text = part.get("text") if isinstance(part, dict) and kind == "text" else None
    return (
        len(text.encode(errors="replace") if isinstance(text, str) else orjson.dumps(part)) // BYTES_A_TOKEN
    )
