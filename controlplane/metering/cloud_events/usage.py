"""The data of usage events from outside, and their rows."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from contracts.usage_event import UsageStatus
from controlplane.metering.cloud_events.envelope import CloudEvent
from controlplane.metering.cloud_events.errors import EventDeadError, EventRefusedError
from controlplane.metering.event_rows import COLUMNS, EventRow
from controlplane.metering.models import NAME

MOST_TOKENS: Final = 10_000_000
"""Most tokens of one request. No model reads or writes as many: a larger count is a mistake of the sender."""
AHEAD: Final = dt.timedelta(minutes=5)
"""Largest time by which a sender's clock may be ahead."""
ATTEMPT: Final = 1
_MAX_MS: Final = 86_400_000

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME, pattern=r"^[\x21-\x7e]+$")]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_Ms = Annotated[float, msgspec.Meta(ge=0, le=_MAX_MS)]


class UsageData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data` of a `graftwork.usage.v1` event.

    Attributes:
        model: as clients write it (`base`, `adapter`, `adapter@alias`, `adapter@v2`), or an engine name.
        tenant, project: None for those of the key.
        prompt_tokens: with the cached ones.
        completion_tokens: with those of the thought, `reasoning_tokens`.
        images: in the prompt; their tokens are among the prompt's.
        operation: the kind of request.
        estimated: the counts are estimates, since the server reported none.
        backend, endpoint: the server that answered, in the sender's own names.
    """

    model: _Name
    prompt_tokens: _Tokens
    completion_tokens: _Tokens
    cached_tokens: _Tokens = 0
    reasoning_tokens: _Tokens = 0
    images: _Tokens = 0
    operation: Literal["", "chat", "completions", "embeddings", "score", "rerank", "classify"] = ""
    tenant: _Name | None = None
    project: _Name | None = None
    status: UsageStatus = "ok"
    error_code: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-z0-9_.-]*$")] = ""
    estimated: bool = False
    backend: Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[a-z0-9_.-]+$")] = "external"
    endpoint: Annotated[str, msgspec.Meta(max_length=NAME, pattern=r"^[\x21-\x7e]*$")] = ""
    ttft_ms: _Ms | None = None
    itl_ms: _Ms | None = None
    duration_ms: _Ms = 0.0

    @classmethod
    def from_event(cls, event: CloudEvent, *, now: dt.datetime) -> UsageData:
        """Parse and check an event's data.

        Raises EventRefusedError: a field is missing, unknown or impossible, or the time lies in the future.
        """
        try:
            data = msgspec.convert(event.data, cls)
        except msgspec.ValidationError as error:
            raise _refused(event, f"data: {error}") from None
        # `$` in a pattern also matches before a trailing newline.
        if any(isinstance(value, str) and "\n" in value for value in msgspec.structs.astuple(data)):
            raise _refused(event, "data: strings cannot contain line breaks")
        if data.cached_tokens > data.prompt_tokens:
            raise _refused(event, "data: cached_tokens must not exceed prompt_tokens")
        if data.reasoning_tokens > data.completion_tokens:
            raise _refused(event, "data: reasoning_tokens must not exceed completion_tokens")
        if event.time > now + AHEAD:
            ahead = int((event.time - now).total_seconds())
            raise _refused(event, f"time is {ahead} s in the future: check the sender's clock")
        return data


class Meant(msgspec.Struct, frozen=True):
    """The model that an event names: `adapter` is an engine name, "" for the base model alone."""

    base_model: str
    adapter: str = ""
    alias: str = ""


_REPORTED: Final = tuple(
    name for name in UsageData.__struct_fields__ if name in COLUMNS and name not in ("tenant", "project")
)
"""Columns with the sender's own value; the tenant and the project are those that the key may report for."""


def usage_row(
    event: CloudEvent, data: UsageData, meant: Meant, *, tenant: str, project: str, key_id: str
) -> EventRow:
    """Return the event's row. The same event always makes the same row, hence the same unique key.

    Raises EventDeadError for a time before 1970, which no row can hold.
    """
    milliseconds = int(event.time.timestamp() * 1000)
    if milliseconds < 0:
        raise EventDeadError("its time is before 1970", id=event.id, source=event.source)
    days, rest = divmod(milliseconds // 1000, 86_400)
    return EventRow(
        event_id=event_uuid(event, project, milliseconds),
        day=(dt.date(1970, 1, 1) + dt.timedelta(days)).isoformat(),
        hour=rest // 3600,
        tenant=tenant,
        project=project,
        key_id=key_id,
        request_id=request_id(event, project),
        attempt=ATTEMPT,
        requested_model=data.model,
        alias=meant.alias,
        arm="",
        adapter=meant.adapter,
        base_model=meant.base_model,
        **{name: getattr(data, name) for name in _REPORTED},
        started_at=milliseconds,
        gateway_id=event.source,
    )


def request_id(event: CloudEvent, project: str) -> str:
    """Return the request id of an event, derived from its source, id and project.

    Events of other projects, even with the same source and id, have other ids.
    """
    return f"ce-{_digest(event, project)[:20].hex()}"


def event_uuid(event: CloudEvent, project: str, milliseconds: int) -> str:
    """Return a UUIDv7 of the event's time, with the other bits from the event's identity."""
    value = milliseconds << 80 | int.from_bytes(_digest(event, project)[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


def _digest(event: CloudEvent, project: str) -> bytes:
    # NUL separates the parts, since none of them may contain it.
    return hashlib.sha256(f"{event.source}\0{event.id}\0{project}".encode()).digest()


def _refused(event: CloudEvent, reason: str) -> EventRefusedError:
    return EventRefusedError(reason, id=event.id, source=event.source)


def data_schema() -> Mapping[str, Any]:
    """Return the JSON schema of `data`, as it is checked."""
    schema = msgspec.json.schema(UsageData)
    return {**schema["$defs"]["UsageData"], "description": "Usage of one attempt of one request."}
