"""Hides thoughts whose client sent `include_reasoning: false`.

Backends are asked for the thought all the same: vLLM sends no events while it hides one, so the tokens of a
client that hangs up would never be reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

_PARAMETER: Final = "include_reasoning"
_NAMES: Final = ("reasoning_content", "reasoning")
_ANSWERS: Final = ("content", "tool_calls", "refusal")
_OF_TOKENS: Final = ("token_ids", "logprobs")
_DATA: Final = re.compile(rb"^data: ?(\{.*?)\r?$", re.MULTILINE)


def hides_thought(parameters: Mapping[str, Any]) -> bool:
    """Return True if the client asked for an answer without its thought."""
    return parameters.get(_PARAMETER) is False


def shown_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters for a backend whose answer goes through `without_thought` if it must."""
    return {name: value for name, value in parameters.items() if name != _PARAMETER}


def without_thought(block: bytes) -> bytes:
    """Remove thoughts from whole events; an event of a thought stays, with an empty delta."""
    return _DATA.sub(_clean, block) if b'"reasoning' in block else block


def body_without_thought(body: bytes) -> bytes:
    """Remove thoughts from an answer that does not stream."""
    return _removed(body) if b'"reasoning' in body else body


def _clean(match: re.Match[bytes]) -> bytes:
    if b'"reasoning' not in match[1]:
        return match[0]
    return b"data: " + _removed(match[1]) + (b"\r" if match[0].endswith(b"\r") else b"")


def _removed(data: bytes) -> bytes:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data
    choices = value.get("choices") if isinstance(value, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        for message in (choice.get("delta"), choice.get("message")) if isinstance(choice, dict) else ():
            if isinstance(message, dict):
                _remove(choice, message)
    return orjson.dumps(value)


def _remove(choice: dict[str, Any], message: dict[str, Any]) -> None:
    thought = [message.pop(name, None) for name in _NAMES]
    if any(thought) and not _answers(message):
        # Ids and log probabilities of these tokens would tell the thought.
        for name in _OF_TOKENS:
            choice.pop(name, None)


def _answers(message: Mapping[str, Any]) -> bool:
    return any(message.get(name) for name in _ANSWERS)
