"""One call's JSON object, read as it streams: its name, and its arguments' text before it is complete."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ObjectScanner:
    """Follows one JSON object, character by character.

    Attributes:
        arguments_key: where the object holds its arguments.
        known_name: the function's, where the object is its arguments alone.
        raw: what has been read.
        done: the object's last brace has been read.
    """

    arguments_key: str
    known_name: str | None = None
    raw: str = ""
    done: bool = False
    _depth: int = 0
    _in_string: bool = False
    _escaped: bool = False
    _token_start: int = 0
    _key: str | None = None
    _spans: dict[str, list[int]] = field(default_factory=dict)

    def feed(self, text: str) -> int:
        """Reads on; returns how many characters belong to the object, all unless it ends among them."""
        for taken, char in enumerate(text, 1):
            self.raw += char
            self._step(char)
            if self.done:
                return taken
        return len(text)

    def _step(self, char: str) -> None:
        at = len(self.raw) - 1
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
            return
        if self._depth == 1 and self._key is not None and char in ",}":
            self._spans[self._key][1:] = [at]
            self._key = None
        if char == '"':
            self._in_string, self._token_start = True, at
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.done = self._depth == 0
        elif char == ":" and self._depth == 1 and self._key is None:
            self._key = self._string(self._token_start)
            self._spans[self._key] = [at + 1]

    def _string(self, start: int) -> str:
        try:
            text, _ = json.JSONDecoder().raw_decode(self.raw, start)
        except ValueError:
            return ""
        return text if isinstance(text, str) else ""

    @property
    def has_keys_of_a_call(self) -> bool:
        """Return True while every key read so far is one that a call's object has."""
        return self.known_name is not None or self._spans.keys() <= {"name", self.arguments_key}

    @property
    def name(self) -> str | None:
        """The function's name once it has been read whole."""
        if self.known_name is not None:
            return self.known_name
        span = self._spans.get("name")
        if span is None or len(span) < 2:
            return None
        return self._string(span[0] + len(self.raw[span[0] :]) - len(self.raw[span[0] :].lstrip()))

    @property
    def arguments(self) -> str:
        """The arguments' text so far, when they are an object; "" before that."""
        if self.known_name is not None:
            return self.raw
        span = self._spans.get(self.arguments_key)
        if span is None:
            return ""
        text = self.raw[span[0] : span[1] if len(span) > 1 else None].strip()
        return text if text.startswith("{") else ""

    def parse(self) -> tuple[str, str] | None:
        """Name and arguments of a complete call, or None when this is no call."""
        try:
            value: Any = json.loads(self.raw)
        except ValueError:
            return None
        if self.known_name is not None:
            return self.known_name, self.raw
        name = value.get("name")
        arguments = value.get(self.arguments_key, {})
        if not isinstance(name, str) or not name:
            return None
        return name, self.arguments or (arguments if isinstance(arguments, str) else json.dumps(arguments))
