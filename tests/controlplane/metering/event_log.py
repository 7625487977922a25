"""Usage events straight in the database, as ingestion leaves them there."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure


def event_id(at: dt.datetime, number: int = 0) -> UUID:
    """A UUIDv7 of that moment."""
    return UUID(int=int(at.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | number)


def logged(tenant: str, at: dt.datetime, number: int = 0, **values: Any) -> UsageEventRow:
    """Log one attempt at `at`; `number` distinguishes events of one millisecond."""
    day = at.astimezone(dt.UTC).date()
    partitions_ensure([day])
    row: dict[str, Any] = {
        "event_id": event_id(at, number),
        "day": day,
        "hour": at.hour,
        "tenant": tenant,
        "project": "default",
        "key_id": "k",
        "request_id": str(event_id(at, number + 1000)),
        "attempt": 0,
        "requested_model": "tiny",
        "alias": "",
        "arm": "",
        "adapter": "",
        "base_model": "tiny",
        "operation": "",
        "backend": "worker",
        "endpoint": "copy-1",
        "status": "ok",
        "error_code": "",
        "prompt_tokens": 12,
        "cached_tokens": 2,
        "completion_tokens": 30,
        "reasoning_tokens": 0,
        "images": 0,
        "estimated": False,
        "ttft_ms": 87.4,
        "itl_ms": 21.5,
        "duration_ms": 1240.0,
        "started_at": int(at.timestamp() * 1000),
        "gateway_id": "gateway-1",
    }
    return UsageEventRow.objects.create(**{**row, **values})
