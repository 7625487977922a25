"""Validates entries of the usage stream, and converts them to rows of the table."""

from __future__ import annotations

import datetime as dt
import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import msgspec
from django.utils import timezone

from contracts.errors import ContractError
from contracts.usage_event import UsageEvent, UsageStatus
from controlplane.metering.models import NAME

logger = logging.getLogger(__name__)
STATUSES: Final = ("ok", "error", "client_error", "cancelled", "interrupted")
_MAX_TOKENS: Final = 1 << 40
_MAX_MS: Final = 1e12
_FUTURE_S: Final = 86_400
"""Largest difference of clocks that is accepted, in seconds."""
_UUID7: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of the usage stream; `event` should be JSON of a UsageEvent."""

    stream_id: str
    event: bytes

    @property
    def arrived(self) -> float:
        """When Redis received it, by the clock of Redis, in Unix seconds."""
        milliseconds = self.stream_id.partition("-")[0]
        return int(milliseconds) / 1000 if milliseconds.isdecimal() else timezone.now().timestamp()


class EventRow(NamedTuple):
    """A row of `UsageEventRow`, in column order; a NamedTuple, since a batch makes thousands."""

    event_id: str
    day: str
    hour: int
    tenant: str
    project: str
    key_id: str
    request_id: str
    attempt: int
    requested_model: str
    alias: str
    arm: str
    adapter: str
    base_model: str
    backend: str
    endpoint: str
    status: str
    error_code: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool
    ttft_ms: float | None
    duration_ms: float
    started_at: int
    gateway_id: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The table's unique key: day, tenant, request id and attempt."""
        return self.day, self.tenant, self.request_id, self.attempt


_Text = Annotated[str, msgspec.Meta(max_length=NAME)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=_MAX_TOKENS)]
_Ms = Annotated[float, msgspec.Meta(gt=-_MAX_MS, lt=_MAX_MS)]


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A UsageEvent as the database takes it: decoding validates all fields but two conditions."""

    event_id: Annotated[str, msgspec.Meta(pattern=_UUID7)]
    tenant: _Text
    project: _Text
    key_id: _Text
    request_id: _Text
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    requested_model: _Text
    alias: _Text
    arm: _Text
    adapter: _Text
    base_model: _Text
    backend: _Text
    endpoint: _Text
    status: UsageStatus
    error_code: _Text
    prompt_tokens: _Tokens
    cached_tokens: _Tokens
    completion_tokens: _Tokens
    estimated: bool
    ttft_ms: _Ms | None
    duration_ms: _Ms
    started_at: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    gateway_id: _Text


_DECODER: Final = msgspec.json.Decoder(_Event)
_TEXTS: Final = tuple(name for name in _Event.__struct_fields__ if name not in ("event_id", "status"))


def event_row(entry: StreamEntry) -> EventRow:
    """Return the entry's row. Raises ContractError with the reason if it is invalid."""
    try:
        event = _DECODER.decode(entry.event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        event = _validated(entry.event)
    else:
        # JSON can escape NUL, which PostgreSQL's text type rejects.
        if b"\\u0000" in entry.event:
            event = _validated(entry.event)
        if event.cached_tokens > event.prompt_tokens:
            raise ContractError("usage event field cached_tokens must not exceed prompt_tokens")
    values = msgspec.structs.astuple(event)
    return EventRow(values[0], *_day_and_hour(event.event_id, entry.arrived), *values[1:])


def named_day(row: EventRow) -> str:
    """Return the UTC day in the event's own id; later than `row.day` if the gateway's clock was ahead."""
    return _iso(_milliseconds(row.event_id) // 86_400_000)


def _validated(text: bytes) -> _Event:
    """Validate the slow way, with error messages of our own."""
    try:
        event = UsageEvent.from_json(text)
    except RecursionError as error:
        raise ContractError(f"a usage event is nested too deeply: {error}") from error
    for name in _TEXTS:
        value = getattr(event, name)
        # Python accepts a lone surrogate in text, databases do not.
        if isinstance(value, str) and (len(value) > NAME or "\0" in value or not _is_unicode(value)):
            raise ContractError(f"usage event field {name} must be at most {NAME} characters without NUL")
    if event.status not in STATUSES:
        raise ContractError(f"usage event status must be one of {', '.join(STATUSES)}, got {event.status!r}")
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        value = getattr(event, name)
        if isinstance(value, bool) or not 0 <= value < _MAX_TOKENS:
            raise ContractError(f"usage event field {name} must be 0 or more, got {value!r}")
    if event.cached_tokens > event.prompt_tokens:
        raise ContractError("usage event field cached_tokens must not exceed prompt_tokens")
    for name, bound in (("attempt", 1 << 31), ("started_at", 1 << 62)):
        value = getattr(event, name)
        if isinstance(value, bool) or not 0 <= value < bound:
            raise ContractError(f"usage event field {name} must be 0 or more, got {value!r}")
    # Compare instead of converting: a JSON integer may be too large for a float, and NaN fails comparisons.
    if not -_MAX_MS < event.duration_ms < _MAX_MS or not -_MAX_MS < (event.ttft_ms or 0.0) < _MAX_MS:
        raise ContractError("usage event fields duration_ms and ttft_ms must be finite, below 1e12")
    event.event_id = event.event_id.lower()
    if re.fullmatch(_UUID7, event.event_id) is None:
        raise ContractError(f"usage event field event_id must be a UUID of version 7, got {event.event_id!r}")
    return _Event(**{name: getattr(event, name) for name in _Event.__struct_fields__})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _milliseconds(event_id: str) -> int:
    return int(event_id[:8] + event_id[9:13], 16)


def _day_and_hour(event_id: str, arrived: float) -> tuple[str, int]:
    """UTC day and hour of a UUIDv7, by the gateway's clock, so that a late event counts when it happened.

    An event that lies over a day after its arrival counts at its arrival instead.
    """
    seconds = _milliseconds(event_id) / 1000
    if seconds > arrived + _FUTURE_S:
        logger.warning("usage event %s lies in the future: check the gateway's clock", event_id)
        seconds = arrived
    days, rest = divmod(int(seconds), 86_400)
    return _iso(days), rest // 3600


@lru_cache(maxsize=16)
def _iso(days: int) -> str:
    """Return the date `days` after 1970-01-01."""
    return (dt.date(1970, 1, 1) + dt.timedelta(days)).isoformat()
