"""Splits streamed text into content and tool calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from worker_engine.text.tool_calls.base import CallForm
from worker_engine.text.tool_calls.object_scanner import ObjectScanner

_NAME: Final = re.compile(r"\s*([\w.-]{1,64})(?:\[CALL_ID\]\w{1,64})?\s*")
_LONGEST_NAME: Final = 160
"""Most characters of a name, with the spaces and the id that may surround it."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of call number `index`; `name` is set in the first piece only."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """Content and calls found in new text."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()


class CallParser:
    """Parses one answer. Text that resembles a call but is none becomes content, unchanged.

    Args:
        forced: a grammar restricts the answer to calls, so that no text in it is content.
    """

    def __init__(self, form: CallForm, *, forced: bool = False) -> None:
        self.num_calls = 0
        self._form, self._forced = form, forced
        self._buffer = ""
        self._state = self._read_start if form.bare else self._read_content
        self._raw = ""
        """Text read since the last call or content, which becomes content if no call follows."""
        self._object = ObjectScanner(form.arguments)
        self._name: str | None = None
        self._between = " \n\r\t" if form.naming else " \n\r\t,;[]"
        """Separators between objects, which carry no content."""
        self._sent: int | None = None
        self._content: list[str] = []
        self._calls: list[CallDelta] = []

    def feed(self, text: str) -> ParsedDelta:
        """Take new text; hold back what may begin a call."""
        self._buffer += text
        while self._buffer and self._state():
            pass
        return self._take()

    def finish(self, *, truncated: bool = False) -> ParsedDelta:
        """Return the text held back, when no text follows.

        Args:
            truncated: `max_tokens` ended the answer, so the beginning of a call is dropped.
        """
        reading = self._state == self._read_object
        sent = reading and self._sent is not None
        if not (sent or self._forced or (truncated and self._may_be_call(reading))):
            self._say(self._raw + (self._object.raw if reading else self._buffer))
        return self._take()

    def _may_be_call(self, reading: bool) -> bool:
        """Return False only for an object without a call marker and without a call's keys."""
        return not reading or bool(self._raw.strip()) or self._object.has_keys_of_a_call

    def _take(self) -> ParsedDelta:
        parsed = ParsedDelta("".join(self._content), tuple(self._calls))
        self._content, self._calls = [], []
        return parsed

    # Each state consumes what it can of the buffer; False means that it needs more.

    def _read_start(self) -> bool:
        """At the start of the answer, a bare object is a call."""
        text = self._buffer.lstrip()
        if not text:
            return False
        self._state = self._read_between if text.startswith("{") else self._read_content
        return True

    def _read_content(self) -> bool:
        begin = self._form.begin
        start = self._buffer.find(begin)
        if start >= 0:
            self._say(self._buffer[:start])
            self._raw, self._buffer = begin, self._buffer[start + len(begin) :]
            self._state = self._read_name if self._form.naming else self._read_between
            return True
        shown = len(self._buffer) - overlap(self._buffer, begin)
        self._say(self._buffer[:shown])
        self._buffer = self._buffer[shown:]
        return False

    def _read_name(self) -> bool:
        """Read the name between `begin` and the object of arguments."""
        naming = self._form.naming
        name, found, rest = self._buffer.partition(naming)
        match = _NAME.fullmatch(name)
        if found and match is not None:
            self._name, self._raw = match[1], self._raw + name + naming
            self._buffer, self._state = rest, self._read_between
        elif found or len(name) > _LONGEST_NAME:
            self._say(self._raw)
            self._raw, self._state = "", self._read_content
        else:
            return False
        return True

    def _read_between(self) -> bool:
        """Around objects: skip separators, then read another object, the end marker, or content."""
        rest = self._buffer.lstrip(self._between)
        self._raw += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        end = self._form.end
        if rest.startswith("{"):
            self._object, self._sent = ObjectScanner(self._form.arguments, self._name), None
            self._state = self._read_object
        elif end and rest.startswith(end):
            self._say(self._raw + end if self._raw.strip(self._between) else "")
            self._raw, self._buffer, self._state = "", rest[len(end) :], self._read_content
        elif rest and not (end and end.startswith(rest)):
            self._say(self._raw)
            self._raw, self._state = "", self._read_content
        else:
            return False
        return True

    def _read_object(self) -> bool:
        scanner = self._object
        self._buffer = self._buffer[scanner.feed(self._buffer) :]
        if not scanner.done:
            if scanner.name and scanner.arguments:
                self._send(scanner.name, scanner.arguments)
            return False
        call = scanner.parse()
        self._state = self._read_between
        if call is not None:
            self._send(*call)
        elif scanner.name and scanner.arguments:
            # Invalid JSON: send it as it would have been sent in pieces.
            self._send(scanner.name, scanner.arguments)
        if self._sent is None:
            self._say(self._raw + scanner.raw)
            self._state = self._read_content
        else:
            self.num_calls += 1
        self._raw = ""
        return True

    def _say(self, text: str) -> None:
        # White space between and after calls belongs to the format, not to the content.
        if text and (not self.num_calls or text.strip(self._between)):
            self._content.append(text)

    def _send(self, name: str, arguments: str) -> None:
        if self._sent is None:
            self._calls.append(CallDelta(self.num_calls, name, arguments))
        elif len(arguments) > self._sent:
            self._calls.append(CallDelta(self.num_calls, None, arguments[self._sent :]))
        self._sent = len(arguments)


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
