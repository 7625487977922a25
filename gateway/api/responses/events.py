"""Translates a chat's chunks to a response's events, in OpenAI's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.api.responses.response import (
    Response,
    call_item,
    encode,
    message_item,
    reasoning_item,
    reasoning_part,
    text_logprobs,
    text_part,
    thought_of,
)
from gateway.api.whole_answer import continues_call


class ResponseEvents:
    """Follows one stream. One item is open at a time: a thought, text, or a function call.

    Events are queued until `drain`, so that a chunk that turns out malformed half-way loses none.
    """

    def __init__(self, response: Response) -> None:
        self._response = response
        self._number = 0
        self._waiting: list[bytes] = []
        self._item: dict[str, Any] | None = None
        self._call: Mapping[str, Any] = {}
        """The first piece of the open call."""
        self._pending_logprobs: list[Any] = []
        """Log probabilities of tokens whose text has not arrived; a call's tokens have none."""
        self._reason: str | None = None

    def drain(self) -> bytes:
        """Return the events queued since the last call."""
        events = b"".join(self._waiting)
        self._waiting.clear()
        return events

    def begin(self) -> None:
        """Open the stream; further calls do nothing."""
        if not self._number:
            self._state("response.created")
            self._state("response.in_progress")

    def chunk(self, value: Mapping[str, Any]) -> None:
        """Translate one chunk. Raises ValueError if it is not a chat's chunk."""
        try:
            self._response.take_usage(value.get("usage"))
            for choice in (value.get("choices") or [])[:1]:
                self._choice(choice)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("The backend sent an event that is no chunk of a chat.") from error

    def end(self) -> None:
        """End a complete stream."""
        if not self._response.output and self._item is None:
            # A model that wrote nothing gave an empty text.
            self._open_text()
        if self._pending_logprobs and self._item is not None and self._item["type"] == "message":
            self._text("")
        self._response.finish(self._reason)
        self._close()
        self._state(f"response.{self._response.status}")

    def fail(self, message: str) -> None:
        """End a broken stream; the response keeps the text so far."""
        self.begin()
        if self._item is not None:
            self._item["status"] = "incomplete"
        self._response.fail(message)
        try:
            self._state("response.failed")
        except orjson.JSONEncodeError:
            # The output holds a value that is nested too deeply for orjson.
            self._response.output.clear()
            self._state("response.failed")

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        text, logprobs = delta.get("content"), (choice.get("logprobs") or {}).get("content") or []
        if thought := thought_of(delta):
            self._thought(thought)
            # Responses have log probabilities of texts alone: a thought's and its marks' are left out.
            self._pending_logprobs, logprobs = [], text_logprobs(logprobs, text or "", thought)
        self._pending_logprobs += logprobs
        if text:
            self._text(text)
        for call in delta.get("tool_calls") or []:
            self._function(call)
        self._reason = choice.get("finish_reason") or self._reason

    def _text(self, text: str) -> None:
        """Add text and its tokens' log probabilities, some of which may have come before it."""
        if self._item is not None and self._item["type"] == "reasoning":
            self._pending_logprobs = text_logprobs(self._pending_logprobs, text)
        if self._item is None or self._item["type"] != "message":
            self._close()
            self._open_text()
        assert self._item is not None
        part, logprobs, self._pending_logprobs = self._item["content"][0], self._pending_logprobs, []
        part["text"] += text
        part["logprobs"] += logprobs
        self._event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _thought(self, text: str) -> None:
        if self._item is None or self._item["type"] != "reasoning":
            self._close()
            self._item = reasoning_item()
            self._response.output.append(self._item)
            self._item_event("response.output_item.added")
            self._item["content"].append(reasoning_part())
            self._event("response.content_part.added", content_index=0, part=reasoning_part())
        assert self._item is not None
        self._item["content"][0]["text"] += text
        self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def _open_text(self) -> None:
        self._item = message_item()
        self._response.output.append(self._item)
        self._item_event("response.output_item.added")
        self._item["content"].append(text_part())
        self._event("response.content_part.added", content_index=0, part=text_part())

    def _function(self, call: Mapping[str, Any]) -> None:
        function = call.get("function") or {}
        self._pending_logprobs = []
        is_call = self._item is not None and self._item["type"] == "function_call"
        if not is_call or not continues_call(call, self._call):
            # Only a call's first piece has a name, so a call cannot resume after another one.
            fresh = call_item(call.get("id"), function["name"])
            self._close()
            self._item, self._call = fresh, call
            self._response.output.append(fresh)
            self._item_event("response.output_item.added")
        assert self._item is not None
        if piece := function.get("arguments"):
            self._item["arguments"] += piece
            self._event("response.function_call_arguments.delta", delta=piece)

    def _close(self) -> None:
        """End the open item, if there is one."""
        if (item := self._item) is None:
            return
        item["status"] = "incomplete" if self._response.status == "incomplete" else "completed"
        if item["type"] == "message":
            part = item["content"][0]
            fields = {"text": part["text"], "logprobs": part["logprobs"]}
            self._event("response.output_text.done", content_index=0, **fields)
            self._event("response.content_part.done", content_index=0, part=part)
        elif item["type"] == "reasoning":
            part = item["content"][0]
            self._event("response.reasoning_text.done", content_index=0, text=part["text"])
            self._event("response.content_part.done", content_index=0, part=part)
        else:
            fields = {"name": item["name"], "arguments": item["arguments"]}
            self._event("response.function_call_arguments.done", **fields)
        self._item_event("response.output_item.done")
        self._item = None

    def _event(self, kind: str, **fields: Any) -> None:
        """Queue an event about the open item."""
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._response.output) - 1}
        self._send(kind, place | fields)

    def _item_event(self, kind: str) -> None:
        self._send(kind, {"output_index": len(self._response.output) - 1, "item": self._item})

    def _state(self, kind: str) -> None:
        self._send(kind, {"response": self._response.to_dict()})

    def _send(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._waiting.append(encode({"type": kind, "sequence_number": self._number, **fields}))
        self._number += 1
