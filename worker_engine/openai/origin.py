"""Scheduling fields that the gateway adds to OpenAI's: tenant, weight, priority, cache salt, time limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from contracts.adapters.reference import AdapterMix, AdapterRef, EngineName
from worker_engine.errors import InvalidRequest
from worker_engine.protocol import Origin

FIELDS: Final = ("tenant", "tenant_weight", "priority", "cache_salt", "timeout")
TIMEOUT_HEADER: Final = "x-request-timeout"
_MAX_TEXT: Final = 256
_MAX_PRIORITY: Final = 100
_MAX_WEIGHT: Final = 1000.0
_MAX_SECONDS: Final = 86400.0


def parse_origin(body: Mapping[str, Any], adapter: AdapterRef | AdapterMix | None) -> Origin:
    """Return the origin in a request's body; without `tenant` it is the owner of the adapters.

    Raises:
        InvalidRequest: its `param` names the malformed field.
    """
    refs = [ref for ref, _ in adapter.members] if isinstance(adapter, AdapterMix) else [adapter]
    owners = {EngineName.parse(ref.name).tenant for ref in refs if ref is not None}
    owner = owners.pop() if len(owners) == 1 else ""
    weight, timeout = body.get("tenant_weight"), body.get("timeout")
    return Origin(
        tenant=_text(body, "tenant") or owner,
        tenant_weight=1.0 if weight is None else _positive("tenant_weight", weight, _MAX_WEIGHT),
        priority=_priority(body.get("priority")),
        cache_salt=_text(body, "cache_salt"),
        timeout=None if timeout is None else _positive("timeout", timeout, _MAX_SECONDS),
    )


def parse_timeout(header: str | None) -> float | None:
    """Return the seconds of an `x-request-timeout` header. Raises InvalidRequest."""
    if header is None:
        return None
    try:
        return _positive(TIMEOUT_HEADER, float(header), _MAX_SECONDS)
    except ValueError:
        raise InvalidRequest(f"{TIMEOUT_HEADER} must be seconds, got {header[:60]!r}") from None


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InvalidRequest(f"{name} must be a string of at most {_MAX_TEXT} characters", param=name)
    return value


def _positive(name: str, value: object, high: float) -> float:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not 0 < number <= high:
        raise InvalidRequest(f"{name} must be a number above 0, up to {high:g}", param=name)
    return float(number)


def _priority(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_PRIORITY:
        raise InvalidRequest(
            f"priority must be an integer from {-_MAX_PRIORITY} to {_MAX_PRIORITY}", param="priority"
        )
    return value
