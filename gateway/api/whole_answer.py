"""Assembles the events of a stream into one answer, for clients that want it whole.

Backends stream in that case too, so that usage is known when a client hangs up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Self

import orjson

from gateway.api.sse import event_data

MAX_BYTES: Final = 64 << 20
"""Most bytes of one answer's events: 128 choices of 1,000 tokens with log probabilities."""
_LIVE: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text", "arguments"})
"""Texts that come in pieces; any other text comes once, or is repeated."""
_THOUGHTS: Final = ("reasoning_content", "reasoning")
_TEXT_BEGINS: Final = {name: re.compile(rb'"%b"\s*:\s*"' % name.encode()) for name in _LIVE}
_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+')
"""Matches the inside of a JSON string."""
_LOOKED_AT_BYTES: Final = 32 << 10
"""Bytes of events searched at once for a repeated template; if few match, little was searched in vain."""
_MALFORMED: Final = (AttributeError, KeyError, RecursionError, TypeError)
"""Errors of reading an event whose values have other types than OpenAI's."""


class WholeAnswer:
    """Collects a stream's events, and returns the body that a backend would have sent without `stream`.

    Log probabilities are kept as JSON: as objects they would take ten times the memory.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[int, dict[str, Any]] = {}
        self._size = 0
        self._template: _EventTemplate | None = None

    def take(self, events: bytes) -> None:
        """Add whole events.

        Raises:
            ValueError: an event is not OpenAI's JSON object, or the answer exceeds MAX_BYTES.
        """
        self._size += len(events)
        if self._size > MAX_BYTES:
            raise ValueError(f"an answer exceeds {MAX_BYTES} bytes")
        at = 0
        while at < len(events):
            if self._template is not None and (taken := self._template.take(events, at)):
                at += taken
                continue
            end = events.find(b"\n\n", at) + 2
            event = events[at : end if end > 1 else None]
            at += len(event)
            for data in event_data(event):
                if data == b"[DONE]":
                    return
                try:
                    self._template = self._take_event(orjson.loads(data), data)
                except _MALFORMED as error:
                    raise ValueError("an event is not one of OpenAI's") from error

    def body(self, usage: Mapping[str, Any] | None) -> bytes:
        """Return the answer's JSON, with the backend's `usage`.

        Raises:
            ValueError: the events do not fit together, or hold a value that the JSON writer refuses.
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

    def _take_event(self, event: dict[str, Any], data: bytes) -> _EventTemplate | None:
        templates = [self._take_choice(choice, data) for choice in event.pop("choices", None) or ()]
        if not event.keys() <= self._fields.keys():
            self._fields = {name: item for name, item in event.items() if item is not None} | self._fields
        return templates[0] if len(templates) == 1 else None

    def _take_choice(self, choice: dict[str, Any], data: bytes) -> _EventTemplate | None:
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
        if logprobs or len(self._choices) > 1:
            return None
        return _EventTemplate.from_event(data, choice, message, whole)

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
            for name in _THOUGHTS:
                # Some servers begin every stream with an empty thought.
                if not message.get(name):
                    message.pop(name, None)
            calls = message.get("tool_calls")
            text = message.get("content")
            message |= {"role": "assistant", "content": text or (None if calls else "")}
            message.setdefault("refusal", None)
            for call in calls or ():
                call.pop("index", None)
        return choice


class _EventTemplate:
    """The bytes around the text of an event. Most events of a stream differ only in the text.

    The texts are cut out and parsed together, in a third of the time of parsing each event.
    """

    __slots__ = ("_between", "_head", "_kept", "_tail")

    def __init__(self, head: bytes, tail: bytes, kept: list[str]) -> None:
        """`head` and `tail` are the bytes around a text; texts are appended to `kept`."""
        self._head, self._tail, self._kept = head, tail, kept
        self._between = tail + head

    @classmethod
    def from_event(
        cls,
        data: bytes,
        choice: Mapping[str, Any],
        message: Mapping[str, Any] | None,
        whole: Mapping[str, Any],
    ) -> Self | None:
        """Return the template of `data`, whose choice is in `whole`; None if it has more than a text."""
        items = [*choice.items(), *(message or {}).items()]
        texts = [(name, item) for name, item in items if name in _LIVE and item]
        if len(texts) != 1 or any(isinstance(item, list | dict) for _, item in items):
            return None
        name, text = texts[0]
        begins = list(_TEXT_BEGINS[name].finditer(data))
        if len(begins) != 1 or not isinstance(text, str):
            return None
        written = _TEXT.match(data, begins[0].end())
        kept = (whole if message is None else whole["message"])[name]
        return written and cls(b"data: " + data[: written.start()], data[written.end() :] + b"\n\n", kept)

    def take(self, events: bytes, at: int) -> int:
        """Add the texts of the events from byte `at` on that fit the template; return those events' length.

        Raises:
            ValueError: a text is no JSON string.
        """
        if not events.startswith(self._head, at):
            return 0
        *texts, rest = events[at + len(self._head) : at + _LOOKED_AT_BYTES].rsplit(self._between)
        last, tail, _ = rest.partition(self._tail)
        if tail:
            texts.append(last)
        if not texts or not all(map(_TEXT.fullmatch, texts)):
            return 0
        written = b'","'.join(texts)
        self._kept += orjson.loads(b'["%b"]' % written)
        return len(written) - 3 * (len(texts) - 1) + len(texts) * len(self._between)


def _merge(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Merge a piece of a choice; texts that come in pieces stay lists until the end."""
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
        known = next((call for call in reversed(calls) if continues_call(piece, call)), None)
        if known is None:
            calls.append(known := {"index": piece.get("index")})
        _merge(known, piece)


def continues_call(piece: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Return True if a piece of a function call belongs to `call`, a call of the same answer.

    Some servers send whole calls without an index, and some the same index with every call.
    """
    if (piece_id := piece.get("id")) and (call_id := call.get("id")) and piece_id != call_id:
        return False
    if (index := piece.get("index")) is not None:
        return bool(call.get("index") == index)
    return not piece_id and not (piece.get("function") or {}).get("name")


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
