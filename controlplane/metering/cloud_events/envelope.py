"""CloudEvents 1.0 (cloudevents.io, spec and HTTP binding): the envelope of an event, from JSON or headers."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from django.utils.dateparse import parse_datetime

from controlplane.metering.cloud_events.errors import EventRefusedError

SPEC_VERSION: Final = "1.0"
USAGE_TYPE: Final = "graftwork.usage.v1"
"""`type` of an event that reports the usage of one attempt of one request."""
LONGEST: Final = 200
"""Most characters of an `id` and of a `source`."""
_HEADER: Final = "ce-"
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """One event. `id` and `source` together identify it: sent again, it is the same event.

    Attributes:
        time: when it happened; with a time zone.
        data: JSON object, as it was sent.
    """

    id: str
    source: str
    type: str
    time: dt.datetime
    data: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse an object of the JSON format, structured or in a batch.

        Raises EventRefusedError with the reason, and with the event's id where it has one.
        """
        if not isinstance(value, Mapping):
            raise EventRefusedError("an event must be a JSON object")
        # The JSON format: an attribute that is null counts as absent.
        attributes = {name: found for name, found in value.items() if found is not None}
        try:
            if "data_base64" in attributes:
                raise EventRefusedError("data_base64 is not supported: send data as a JSON object")
            return cls._from(attributes, attributes.get("data"))
        except EventRefusedError as error:
            raise EventRefusedError(str(error), **named(attributes)) from None

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], data: object) -> Self:
        """Parse the binary mode: percent-encoded `ce-` headers around a body that is `data` only.

        Raises EventRefusedError as `from_json` does.
        """
        attributes = {
            name.lower().removeprefix(_HEADER): unquote(text)
            for name, text in headers.items()
            if name.lower().startswith(_HEADER)
        }
        try:
            return cls._from(attributes, data)
        except EventRefusedError as error:
            raise EventRefusedError(str(error), **named(attributes)) from None

    @classmethod
    def _from(cls, attributes: Mapping[str, Any], data: object) -> Self:
        version = attributes.get("specversion")
        if version != SPEC_VERSION:
            raise EventRefusedError(f"specversion must be {SPEC_VERSION!r}, got {_quoted(version)}")
        texts = {name: _text(attributes, name) for name in ("id", "source", "type")}
        if texts["type"] != USAGE_TYPE:
            raise EventRefusedError(f"type must be {USAGE_TYPE!r}, got {_quoted(texts['type'])}")
        content_type = attributes.get("datacontenttype", "application/json")
        if not isinstance(content_type, str) or content_type.partition(";")[0].strip() != "application/json":
            raise EventRefusedError("datacontenttype must be application/json or omitted")
        if not isinstance(data, Mapping):
            raise EventRefusedError("data must be a JSON object")
        return cls(**texts, time=_time(attributes), data=data)

    def to_json(self) -> dict[str, Any]:
        """Return the event in the JSON format."""
        return {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "time": self.time.isoformat(),
            "data": dict(self.data),
        }


def named(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return id and source, shortened, of an event that may lack them or have no texts in them."""
    return {
        name: value[:LONGEST] if isinstance(value := attributes.get(name), str) else ""
        for name in ("id", "source")
    }


def _text(attributes: Mapping[str, Any], name: str) -> str:
    value = attributes.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        raise EventRefusedError(f"{name} must be a string of 1 to {LONGEST} characters")
    if _CONTROL.search(value):
        raise EventRefusedError(f"{name} cannot contain spaces, control characters or lone surrogates")
    return value


def _time(attributes: Mapping[str, Any]) -> dt.datetime:
    text = attributes.get("time")
    try:
        moment = parse_datetime(text) if isinstance(text, str) and len(text) < 64 else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise EventRefusedError(
            "time must be an RFC 3339 timestamp with a time zone, such as 2026-11-01T12:30:00Z: usage "
            "counts on the UTC day and hour of the event"
        )
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        raise EventRefusedError("time must be within the years 1 to 9999") from None


def _quoted(value: object) -> str:
    return "nothing" if value is None else repr(value)[:64]
