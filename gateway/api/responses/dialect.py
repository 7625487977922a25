"""Serves a client of the Responses API from a backend of chat completions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import orjson

from gateway.api.dialect import ApiDialect
from gateway.api.responses.events import ResponseEvents
from gateway.api.responses.request import OWN_NAMES, ResponsesRequest, parse
from gateway.api.responses.response import (
    Response,
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    text_logprobs,
    text_part,
    thought_of,
)
from gateway.api.schema import Dropped, drop_nothing
from gateway.api.sse import event_data
from gateway.errors import GatewayError, UpstreamFailed


class ResponsesDialect(ApiDialect):
    """Answers with one response, or the events that build it."""

    def __init__(self, request: ResponsesRequest, request_id: str) -> None:
        super().__init__(request.call)
        self._response = Response(request_id, request.call.model, request.echo)
        self._events = ResponseEvents(self._response)

    @classmethod
    def read(
        cls, body: bytes, request_id: str, dropped: Dropped = drop_nothing, image_hosts: Collection[str] = ()
    ) -> Self:
        """Parse a request. Raises BadRequest."""
        return cls(parse(body, dropped, image_hosts), request_id)

    def whole(self, body: bytes) -> bytes:
        value = orjson.loads(body)
        try:
            [choice] = value["choices"]
            self._response.finish(choice.get("finish_reason"))
            self._response.output += self._items(choice, choice["message"])
            self._response.take_usage(value.get("usage"))
            # The JSON writer raises TypeError also for a value that is nested too deeply.
            return orjson.dumps(self._response.to_dict())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UpstreamFailed("The backend's answer is not a chat completion.") from error

    def _items(self, choice: dict[str, Any], message: dict[str, Any]) -> list[dict[str, Any]]:
        calls, items = message.get("tool_calls") or [], list[dict[str, Any]]()
        if thought := thought_of(message):
            items.append(reasoning_item() | {"content": [reasoning_part() | {"text": thought}]})
        if message.get("content") or not (calls or thought):
            part: dict[str, Any] = {"text": message.get("content") or ""}
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            part["logprobs"] = (
                text_logprobs(logprobs, part["text"], thought) if calls or thought else logprobs
            )
            items.append(message_item() | {"content": [text_part() | part]})
        for call in calls:
            function = call["function"]
            items.append(call_item(call["id"], function["name"]) | {"arguments": function["arguments"]})
        for item in items:
            item["status"] = "completed"
        if self._response.status == "incomplete":
            items[-1]["status"] = "incomplete"
        return items

    def events(self, block: bytes) -> bytes:
        try:
            return self._translated(block)
        except orjson.JSONEncodeError as error:
            raise ValueError("The backend sent a value that is nested too deeply.") from error

    def _translated(self, block: bytes) -> bytes:
        self._events.begin()
        for data in event_data(block):
            if data == b"[DONE]":
                self._events.end()
                break
            value = orjson.loads(data)
            if not isinstance(value, dict):
                raise ValueError("The backend sent an event that is no JSON object.")
            self._events.chunk(value)
        return self._events.drain()

    def translate(self, error: GatewayError) -> None:
        if (param := error.param) is not None and (own := OWN_NAMES.get(param)) is not None:
            error.param, error.message = own, error.message.replace(param, own)

    def failure(self, error: GatewayError) -> bytes:
        self._events.fail(error.message)
        return self._events.drain()
