"""Server-sent events as bytes: passes a stream on, reads its usage, and removes usage that was not requested.

Only the newest `usage` object of a block is decoded. Inside a JSON string a quotation mark is escaped, so the
bytes `"usage":` or `"model":"x"` can only be a key. Searching the bytes is therefore as exact as parsing.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.prompt_progress import PROMPT_PROGRESS
from gateway.api.hidden_thought import without_thought
from gateway.api.usage import Usage, read_usage, text_bytes, token_count

MAX_EVENT_BYTES: Final = 4 << 20
"""A larger single event counts as a broken backend."""

_USAGE: Final = rb'"usage"\s*:\s*'
_OBJECT: Final = rb"\{[^{}\n]*+(?:\{[^{}\n]*+\}[^{}\n]*+)*+\}"
_USAGE_OBJECT: Final = re.compile(_USAGE + rb"(" + _OBJECT + rb")")
_USAGE_KEY: Final = re.compile(_USAGE)
# Two spellings, each with a literal head that the regex engine can search for: 2.5 times as fast as one
# pattern with optional white space.
# A usage object with one inner object comes first: sets of one byte are scanned 2.5 times as fast. It is
# as exact, since the three braces before the line's end close the inner object, usage and the event.
_LAST_KEYS: Final = tuple(
    (head, re.compile(head + rb"(?:\{[^}]*\{[^}]*+\}[^}]*+\}|null|" + _OBJECT + rb")\}(?=\r?\n)"))
    for head in (b',"usage":', b', "usage": ')
)
_NO_CHOICES: Final = (b'"choices":[]', b'"choices": []')
_DONE: Final = re.compile(rb"(?:\A|\n)data: ?\[DONE\]")
_DATA: Final = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
_THOUGHT: Final = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"[^"]')
"""Matches the beginning of a thought's text, under vLLM's older or newer name."""
_EVENT_END: Final = re.compile(rb"\r?\n\r?\n")


class UsageView(enum.Enum):
    """The usage that the client asked to see."""

    HIDDEN = "hidden"
    FINAL = "final"
    CONTINUOUS = "continuous"


class EventStream:
    """Follows one stream of a backend.

    Attributes:
        usage: the usage reported so far.
        events: events with data that passed before any usage was reported.
        text_bytes: bytes of the model's text in those events, for an estimate when no usage is reported.
        done: True once `[DONE]` has passed.
        failed: True once the backend has reported an error; its event is not passed on.
        error: the reported error.
        last_usage: the newest `usage` object, as the backend wrote it; None before the first.
    """

    def __init__(
        self,
        usage: Usage,
        view: UsageView,
        renamed: tuple[str, str] | None = None,
        *,
        counts_thought: bool = False,
        hides_thought: bool = False,
    ) -> None:
        """Follow a stream from its beginning.

        Args:
            renamed: (the backend's model name, the client's model name).
            counts_thought: the stream has one choice. If the backend reports no tokens of the thought, they
                are its completion tokens at the last event with text of the thought.
            hides_thought: the client does not get the thought's text.
        """
        self.usage = usage
        self.events = 0
        self.text_bytes = 0
        self.done = False
        self.failed = False
        self.error: object = None
        self._view = view
        self._rest = b""
        self._newest = b""
        self.last_usage: dict[str, Any] | None = None
        self._ended_with_usage = False
        self._counts_thought, self._hides_thought = counts_thought, hides_thought
        self._names = None if renamed is None or renamed[0] == renamed[1] else _names(*renamed)

    def feed(self, chunk: bytes) -> bytes:
        """Return the complete events to pass on after `chunk`; an incomplete event is kept until its end.

        Raises:
            ValueError: an event exceeds MAX_EVENT_BYTES, or is nested deeper than JSON can be written.
        """
        if self._rest:
            chunk = self._rest + chunk
            self._rest = b""
        if not chunk.endswith(b"\n\n"):
            end = max(chunk.rfind(b"\n\n") + 2, chunk.rfind(b"\n\r\n") + 3)
            if end < 3:
                end = 0
            chunk, self._rest = chunk[:end], chunk[end:]
            if len(self._rest) > MAX_EVENT_BYTES:
                raise ValueError(f"a server-sent event exceeds {MAX_EVENT_BYTES} bytes")
        try:
            return self._pass(chunk) if chunk else b""
        except orjson.JSONEncodeError as error:
            raise ValueError("a server-sent event is nested too deeply") from error

    def _pass(self, block: bytes) -> bytes:
        if block.startswith(PROMPT_PROGRESS):
            block = self._read_progress(block)
        done = block.rfind(b"[DONE]")
        # `[DONE]` stands at a block's end, so a short search there comes first.
        if done >= 0 and (match := _DONE.search(block, max(0, done - 8)) or _DONE.search(block)):
            self.done = True
            end = _EVENT_END.search(block, match.end())
            block = block[: end.end() if end else len(block)]
        # `rfind` is used even where it mostly fails: CPython searches up to five times as fast from the end.
        if block.rfind(b'"error"') >= 0:
            block = self._read_error(block)
        at = block.rfind(b'"usage"')
        if at >= 0:
            self._read_usage(block, at)
            if self._counts_thought and block.rfind(b'"reasoning') >= 0:
                self._count_thought(block)
            block = self._cut(block)
        if not self.usage.reported:
            self.events += block.count(b"data:")
            self.text_bytes += text_bytes(block)
        if self._hides_thought:
            block = without_thought(block)
        if self._names is not None:
            block = self._names.rename(block)
        if self._view is UsageView.FINAL and not self._ended_with_usage:
            if self.done and self.usage.reported:
                block = self._add_usage(block)
            self._newest = block
        return block

    def _read_usage(self, block: bytes, at: int) -> None:
        match = _USAGE_OBJECT.match(block, at)
        if match is None:
            # The newest is null, or the end of a text: search through all of them.
            match = max(_USAGE_OBJECT.finditer(block), key=re.Match.start, default=None)
        if match is not None:
            try:
                self.last_usage = orjson.loads(match[1])
            except orjson.JSONDecodeError:
                return
            self.usage.take(self.last_usage or {})
            details = (self.last_usage or {}).get("completion_tokens_details")
            # vLLM states 0 from the first event on, whether or not it counts thoughts.
            if isinstance(details, dict) and token_count(details.get("reasoning_tokens")):
                self._counts_thought = False

    def _count_thought(self, block: bytes) -> None:
        """Count the thought's tokens by the usage beside its last text, if each event states usage."""
        last = max(_THOUGHT.finditer(block), key=re.Match.start, default=None)
        if last is None:
            return
        end = _EVENT_END.search(block, last.end())
        start = _event_start(block, last.start())
        match = _USAGE_OBJECT.search(block, start, end.start() if end else len(block))
        counts = read_usage(find_usage(match[0]) or {}) if match else None
        if counts is not None:
            self.usage.derive_reasoning(counts[2])

    def _read_progress(self, block: bytes) -> bytes:
        """Remove the worker's comments on prompt progress from `block`, and record their usage."""
        while block.startswith(PROMPT_PROGRESS):
            comment, _, block = block.partition(b"\n\n")
            counts = orjson.loads(comment.removeprefix(PROMPT_PROGRESS))
            if isinstance(counts, dict):
                self.usage.take(counts)
        return block

    def _add_usage(self, block: bytes) -> bytes:
        """Insert OpenAI's final usage chunk when the backend sent usage together with the last choice."""
        heads = [data for data in event_data(self._newest) + event_data(block) if data.startswith(b"{")]
        head = orjson.loads(heads[-1]) if heads else {}
        usage = self.usage
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        event = orjson.dumps({**head, "choices": [], "usage": {**(self.last_usage or {}), **counts}})
        at = block.rfind(b"data:", 0, block.rfind(b"[DONE]"))
        return block[:at] + b"data: " + event + b"\n\n" + block[at:]

    def _cut(self, block: bytes) -> bytes:
        if self._view is UsageView.CONTINUOUS:
            return block
        final = block.rfind(_NO_CHOICES[0])
        if final < 0:
            final = block.rfind(_NO_CHOICES[1])
        if final < 0:
            return self._cut_each(block)
        start = _event_start(block, final)
        end = _EVENT_END.search(block, final)
        stop = end.end() if end else len(block)
        if _USAGE_OBJECT.search(block, start, stop) is None:
            return self._cut_each(block)
        # OpenAI's final chunk has no choices and the whole usage: only clients that asked for it get it.
        self._ended_with_usage = True
        kept = block[start:stop] if self._view is UsageView.FINAL else b""
        return self._cut_each(block[:start]) + kept + self._cut_each(block[stop:])

    def _cut_each(self, block: bytes) -> bytes:
        final = self._view is UsageView.FINAL
        for head, pattern in _LAST_KEYS:
            if head in block:
                block = pattern.sub(b',"usage":null}' if final else b"}", block)
                if not final and block.rfind(b'"usage"') < 0:
                    return block
        if not final and _USAGE_KEY.search(block):
            # Some servers do not write usage as the last key.
            return _DATA.sub(_without_usage, block)
        return block

    def _read_error(self, block: bytes) -> bytes:
        for match in _DATA.finditer(block):
            if b'"error"' not in match[1]:
                continue
            try:
                error = find_error(orjson.loads(match[1]))
            except orjson.JSONDecodeError:
                continue
            if error is not None:
                # vLLM ends its stream with `[DONE]` after an error too.
                self.failed, self.error, self.done = True, error, False
                return block[: _event_start(block, match.start())]
        return block


def _event_start(block: bytes, at: int) -> int:
    """Return the start of the event that contains byte `at`."""
    start = max(0, block.rfind(b"\n\n", 0, at))
    # A stream with `\n\n` needs a search for the other form only within this event.
    other = block.rfind(b"\n\r\n", start, at)
    if other >= 0:
        return other + 3
    return start + 2 if start else 0


def _without_usage(match: re.Match[bytes]) -> bytes:
    if not _USAGE_KEY.search(match[1]):
        return match[0]
    try:
        value = orjson.loads(match[1])
    except orjson.JSONDecodeError:
        return match[0]
    if not isinstance(value, dict):
        return match[0]
    value.pop("usage", None)
    return b"data: " + orjson.dumps(value) + (b"\r" if match[0].endswith(b"\r") else b"")


class _Names:
    """Replaces the backend's name of a model by the client's, in every spelling of the key."""

    __slots__ = ("_name", "_rare", "_shown", "_usual")

    def __init__(self, old: str, new: str) -> None:
        self._name, self._shown = orjson.dumps(old), b'"model":' + orjson.dumps(new)
        self._usual = (b'"model":' + self._name, b'"model": ' + self._name)
        self._rare = re.compile(rb'"model"\s*:\s*' + re.escape(self._name))

    def rename(self, block: bytes) -> bytes:
        # Try all spellings: something between, such as a proxy, may rewrite some events of a stream.
        for spelled in self._usual:
            pieces = block.split(spelled)
            if len(pieces) > 1:
                # Join is half again as fast as `replace`, which counts first.
                block = self._shown.join(pieces)
            if self._name not in block:
                return block
        return self._rare.sub(lambda _: self._shown, block)


_names: Final = functools.lru_cache(maxsize=4096)(_Names)


def event_data(block: bytes) -> list[bytes]:
    """Return the `data` of each event in a block of whole events."""
    # A regular expression takes five times as long.
    return [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]


def find_error(value: object) -> object:
    """Return the error object in a backend's JSON, in OpenAI's form or vLLM's older one; None without one."""
    if not isinstance(value, dict):
        return None
    return value if value.get("object") == "error" else value.get("error")


def find_usage(body: bytes) -> Mapping[str, Any] | None:
    """Return the `usage` object of a whole answer, found by its bytes; None if there is none."""
    match = _USAGE_OBJECT.match(body, max(0, body.rfind(b'"usage"')))
    try:
        return orjson.loads(match[1]) if match else None
    except orjson.JSONDecodeError:
        return None


def rename_model(body: bytes, renamed: tuple[str, str] | None) -> bytes:
    """Replace the backend's model name by the client's in the body of a response that does not stream."""
    return body if renamed is None or renamed[0] == renamed[1] else _names(*renamed).rename(body)
