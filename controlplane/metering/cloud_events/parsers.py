"""Bodies of the three content modes of CloudEvents over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, Any, Final

import msgspec
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from controlplane.errors import InvalidInputError
from controlplane.metering.cloud_events.envelope import CloudEvent
from controlplane.metering.cloud_events.errors import EventRefusedError

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
BINARY: Final = "application/json"
MOST_EVENTS: Final = 1000
"""Most events of one batch."""


class _JsonParser(BaseParser):
    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return msgspec.json.decode(stream.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ParseError(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise ParseError("the body is nested too deeply") from None


class StructuredParser(_JsonParser):
    """One event as a JSON object."""

    media_type = STRUCTURED


class BatchParser(_JsonParser):
    """Events as a JSON array."""

    media_type = BATCH


class BinaryParser(_JsonParser):
    """The event's data alone; its attributes stand in `ce-` headers."""

    media_type = BINARY


PARSERS: Final = (StructuredParser, BatchParser, BinaryParser)


def is_batch(request: Request) -> bool:
    """Return True if the request is a batch, whose events are answered one by one."""
    return _media_type(request) == BATCH


def request_events(request: Request) -> list[CloudEvent | EventRefusedError]:
    """Parse the events of a request in any mode; an invalid event is returned as an error.

    Raises InvalidInputError for a batch that is no array, or too long.
    """
    body = request.data
    if not is_batch(request):
        if _media_type(request) == STRUCTURED:
            return [_parsed(CloudEvent.from_json, body)]
        return [_parsed(CloudEvent.from_headers, request.headers, body)]
    if not isinstance(body, list):
        raise InvalidInputError(f"a batch ({BATCH}) must be a JSON array of events")
    if len(body) > MOST_EVENTS:
        raise InvalidInputError(f"a batch holds at most {MOST_EVENTS} events, this one has {len(body)}")
    return [_parsed(CloudEvent.from_json, value) for value in body]


def _parsed(parse: Callable[..., CloudEvent], *parts: Any) -> CloudEvent | EventRefusedError:
    try:
        return parse(*parts)
    except EventRefusedError as error:
        return error


def _media_type(request: Request) -> str:
    return (request.content_type or "").partition(";")[0].strip().lower()
