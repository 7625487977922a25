"""Reads the data of server-sent events from bytes that are split anywhere."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.errors import UpstreamFailed

MAX_LINE_BYTES: Final = 4 << 20


class EventLines:
    """The events of one stream; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """Return the JSON values of the events that `data` completes; `[DONE]` is None.

        Raises:
            UpstreamFailed: an event is longer than MAX_LINE_BYTES, or is no JSON object.
        """
        data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise UpstreamFailed(f"The backend sent an event of more than {MAX_LINE_BYTES} bytes.")
        return [_value(line[5:].strip()) for line in lines if line.startswith(b"data:")]

    def end(self) -> list[Any]:
        """Return the values of a last line without a line break."""
        return self.feed(b"\n")


def _value(data: bytes) -> Any:
    if data == b"[DONE]":
        return None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed("The backend sent an event that is no JSON.") from error
    if not isinstance(value, dict):
        raise UpstreamFailed("The backend sent an event that is no JSON object.")
    return value
