"""One answer out of the events of a stream, for clients that want it whole.

Backends are asked for events also then: so what was used is known when a client hangs up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.sse import event_data

MAX_BYTES: Final = 64 << 20
"""Of the events of one answer: 128 choices of 1,000 tokens with log probabilities."""
_LIVE: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text", "arguments"})
"""Texts that come in pieces; any other text is told once, or again."""
_MALFORMED: Final = (AttributeError, KeyError, RecursionError, TypeError)
"""What reading an event raises whose values have other types than OpenAI's."""


class WholeAnswer:
    """Takes a stream's events, and gives the body that a backend would have answered without `stream`.

    Log probabilities are kept as JSON: as objects they would take ten times the memory.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[int, dict[str, Any]] = {}
        self._size = 0

    def take(self, events: bytes) -> None:
        """Takes whole events.

        Raises:
            ValueError: one is no JSON object of OpenAI's, or the answer exceeds MAX_BYTES.
        """
        self._size += len(events)
        if self._size > MAX_BYTES:
            raise ValueError(f"an answer exceeds {MAX_BYTES} bytes")
        for data in event_data(events):
            if data == b"[DONE]":
                return
            value = orjson.loads(data)
            try:
                for choice in value.pop("choices", None) or ():
                    self._take_choice(choice)
                if not value.keys() <= self._fields.keys():
                    self._fields = {
                        name: item for name, item in value.items() if item is not None
                    } | self._fields
            except _MALFORMED as error:
                raise ValueError("an event is not one of OpenAI's") from error

    def body(self, usage: Mapping[str, Any] | None) -> bytes:
        """Return the answer's JSON, with the backend's `usage`.

        Raises:
            ValueError: the events do not fit together, or hold a value that no JSON writer takes.
        """
        try:
            return self._body(usage)
        except _MALFORMED as error:
            raise ValueError("its events are not OpenAI's") from error

    def _body(self, usage: Mapping[str, Any] | None) -> bytes:
        choices = [self._whole_choice(index) for index in sorted(self._choices)]
        kind = str(self._fields.get("object", "")).removesuffix(".chunk")
        value = {**self._fields, "object": kind, "choices": choices}
        return orjson.dumps(value if usage is None else {**value, "usage": usage})

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        if (logprobs := choice.pop("logprobs", None)) is not None:
            kept = self._logprobs.setdefault(index, {})
            for name, items in logprobs.items():
                if isinstance(items, list):
                    kept.setdefault(name, []).extend(map(orjson.dumps, items))
                else:
                    kept.setdefault(name, items)
        message = choice.pop("delta", None) or choice.pop("message", None)
        whole = self._choices.setdefault(index, {})
        _merge(whole, choice)
        if message is not None:
            _merge(whole.setdefault("message", {}), message)

    def _whole_choice(self, index: int) -> dict[str, Any]:
        choice = _joined(self._choices[index])
        logprobs = self._logprobs.get(index)
        choice["logprobs"] = logprobs and {
            name: [orjson.Fragment(item) for item in items] if isinstance(items, list) else items
            for name, items in logprobs.items()
        }
        if (message := choice.get("message")) is None:
            choice.setdefault("text", "")
        else:
            calls = message.get("tool_calls")
            text = message.get("content")
            message |= {"role": "assistant", "content": text or (None if calls else "")}
            message.setdefault("refusal", None)
            for call in calls or ():
                call.pop("index", None)
        return choice


def _merge(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Adds what a piece of a choice tells; texts that come in pieces stay lists of them until the end."""
    for name, item in piece.items():
        if item is None or (item == "" and name not in _LIVE):
            continue
        if name in _LIVE and isinstance(item, str):
            whole.setdefault(name, []).append(item)
        elif name == "tool_calls":
            _merge_calls(whole.setdefault(name, []), item)
        elif isinstance(item, dict):
            _merge(whole.setdefault(name, {}), item)
        elif isinstance(item, list):
            whole.setdefault(name, []).extend(item)
        else:
            whole[name] = item


def _merge_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    for piece in pieces:
        # Some servers give whole calls, without an index.
        index = piece.get("index", len(calls))
        known = next((call for call in calls if call.get("index") == index), None)
        if known is None:
            calls.append(known := {"index": index})
        _merge(known, piece)


def _joined(whole: Mapping[str, Any]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name, item in whole.items():
        if name in _LIVE and isinstance(item, list):
            joined[name] = "".join(item)
        elif isinstance(item, dict):
            joined[name] = _joined(item)
        elif name == "tool_calls":
            joined[name] = [_joined(call) for call in item]
        else:
            joined[name] = item
    return joined
