"""Usage events of adapters, ingested as those of gateways are."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable
from typing import Any

from contracts.adapters.reference import engine_name
from contracts.usage_event import UsageEvent
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.services import usage_ingest
from controlplane.metering.tasks import add_latencies
from tests.controlplane.metering.event_log import event_id

_numbers = itertools.count(1)


def engine(adapter: str = "support-bot", tenant: str = "acme", version: int = 1) -> str:
    """The engine name of a version."""
    return engine_name(tenant=tenant, adapter=adapter, version=version, sha256="ab" * 32)


def attempt(
    at: dt.datetime, *, tenant: str = "acme", adapter: str = "support-bot", **values: Any
) -> UsageEvent:
    """An attempt that starts at `at`; without further values it ends well a second later."""
    number = next(_numbers)
    fields: dict[str, Any] = {
        "event_id": str(event_id(at, number)),
        "tenant": tenant,
        "project": "default",
        "key_id": "k",
        "request_id": f"r{number}",
        "attempt": 0,
        "requested_model": adapter,
        "alias": "",
        "arm": "",
        "adapter": engine(adapter, tenant) if adapter else "",
        "base_model": "tiny-base",
        "operation": "",
        "backend": "worker",
        "endpoint": "copy-1",
        "status": "ok",
        "error_code": "",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 6,
        "reasoning_tokens": 0,
        "images": 0,
        "estimated": False,
        "ttft_ms": 100.0,
        "itl_ms": 20.0,
        "duration_ms": 1000.0,
        "started_at": int(at.timestamp() * 1000),
        "gateway_id": "g",
    }
    return UsageEvent(**{**fields, **values})


def entries(events: Iterable[UsageEvent]) -> list[StreamEntry]:
    """Return the events as entries of the stream that have just arrived."""
    stream_id = f"{int(dt.datetime.now(dt.UTC).timestamp() * 1000)}-0"
    return [StreamEntry(stream_id, event.to_json().encode()) for event in events]


def ingest(events: Iterable[UsageEvent]) -> int:
    """Ingest events, and add their latencies to the histograms; returns how many were new."""
    count = usage_ingest(entries=entries(events))
    add_latencies()
    return count
