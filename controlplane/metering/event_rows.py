"""Validates entries of the usage stream, and converts them to rows of the table."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Final, cast

import msgspec
from django.utils import timezone

from contracts.errors import ContractError
from contracts.usage_event import ADDED, STATUSES, UsageEvent, UsageStatus
from controlplane.metering.models import NAME

logger = logging.getLogger(__name__)
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


@dataclass(kw_only=True)
class EventRow(UsageEvent):
    """A row of `UsageEventRow`: a usage event with its UTC day and hour."""

    day: str
    hour: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The table's unique key: day, tenant, request id and attempt."""
        return self.day, self.tenant, self.request_id, self.attempt


COLUMNS: Final = tuple(item.name for item in fields(EventRow))
_BOUNDS: Final = {"TokenCount": 1 << 40, "Attempt": 1 << 31, "UnixMilliseconds": 1 << 62}
_Ms = Annotated[float, msgspec.Meta(gt=-_MAX_MS, lt=_MAX_MS)]
_TYPES: Final[dict[str, Any]] = {
    "EventId": Annotated[str, msgspec.Meta(pattern=_UUID7)],
    "Name": Annotated[str, msgspec.Meta(max_length=NAME)],
    **{kind: Annotated[int, msgspec.Meta(ge=0, lt=bound)] for kind, bound in _BOUNDS.items()},
    "Milliseconds": _Ms,
    "Milliseconds | None": _Ms | None,
    "UsageStatus": UsageStatus,
    "bool": bool,
}
"""The accepted values, by the name of a UsageEvent field's type."""
_FIELD_TYPES: Final = {item.name: cast(str, item.type) for item in fields(UsageEvent)}
_Event = msgspec.defstruct(
    "_Event",
    [(name, _TYPES[kind], *([ADDED[name]] if name in ADDED else [])) for name, kind in _FIELD_TYPES.items()],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    gc=False,
)
"""A UsageEvent as the database takes it: decoding validates all fields but two conditions."""
_DECODER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Event)


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
        _check_parts(event)
    day, hour = _day_and_hour(event.event_id, entry.arrived)
    return EventRow(*msgspec.structs.astuple(event), day=day, hour=hour)


def _check_parts(event: Any) -> None:
    """Raise ContractError if a part of a count exceeds the count."""
    if event.cached_tokens > event.prompt_tokens:
        raise ContractError("usage event field cached_tokens must not exceed prompt_tokens")
    if event.reasoning_tokens > event.completion_tokens:
        raise ContractError("usage event field reasoning_tokens must not exceed completion_tokens")


def named_day(row: EventRow) -> str:
    """Return the UTC day in the event's own id; later than `row.day` if the gateway's clock was ahead."""
    return _iso(_milliseconds(row.event_id) // 86_400_000)


def _validated(text: bytes) -> Any:
    """Validate the slow way, with error messages of our own."""
    try:
        event = UsageEvent.from_json(text)
    except RecursionError as error:
        raise ContractError(f"a usage event is nested too deeply: {error}") from error
    for name, value in _values(event, "Name"):
        # Python accepts a lone surrogate in text, databases do not.
        if len(value) > NAME or "\0" in value or not _is_unicode(value):
            raise ContractError(f"usage event field {name} must be at most {NAME} characters without NUL")
    if event.status not in STATUSES:
        raise ContractError(f"usage event status must be one of {', '.join(STATUSES)}, got {event.status!r}")
    for kind, bound in _BOUNDS.items():
        for name, value in _values(event, kind):
            if isinstance(value, bool) or not 0 <= value < bound:
                raise ContractError(f"usage event field {name} must be 0 or more, got {value!r}")
    _check_parts(event)
    durations = dict(_values(event, "Milliseconds", "Milliseconds | None"))
    # Compare instead of converting: a JSON integer may be too large for a float, and NaN fails comparisons.
    if not all(-_MAX_MS < (value or 0.0) < _MAX_MS for value in durations.values()):
        names = " and ".join(sorted(durations))
        raise ContractError(f"usage event fields {names} must be finite, below 1e12")
    event.event_id = event.event_id.lower()
    if re.fullmatch(_UUID7, event.event_id) is None:
        raise ContractError(f"usage event field event_id must be a UUID of version 7, got {event.event_id!r}")
    return _Event(**vars(event))


def _values(event: UsageEvent, *kinds: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the fields whose types have one of these names."""
    return ((name, getattr(event, name)) for name, kind in _FIELD_TYPES.items() if kind in kinds)


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
        logger.warning("usage event %s is in the future: check the gateway's clock", event_id)
        seconds = arrived
    days, rest = divmod(int(seconds), 86_400)
    return _iso(days), rest // 3600


@lru_cache(maxsize=16)
def _iso(days: int) -> str:
    return (dt.date(1970, 1, 1) + dt.timedelta(days)).isoformat()
