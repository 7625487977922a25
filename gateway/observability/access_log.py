"""One line a request, for whoever wants it: identifiers, status, tokens and times. Never what was said."""

from __future__ import annotations

import logging
from typing import Any

from gateway.observability.seen import Seen

logger = logging.getLogger("gateway.access")


def log_request(seen: Seen, seconds: float) -> None:
    fields: dict[str, Any] = {
        "request_id": seen.request_id,
        "tenant": seen.tenant,
        "key_id": seen.key_id,
        "endpoint": seen.endpoint,
        "model": seen.base,
        "adapter": seen.adapter,
        "copy": seen.copy,
        "attempts": seen.attempts,
        "status": seen.status,
        "outcome": seen.outcome,
        "code": seen.code,
        "prompt_tokens": seen.prompt,
        "cached_tokens": seen.cached,
        "completion_tokens": seen.completion,
        "duration_ms": round(seconds * 1000, 3),
        "ttft_ms": seen.ttft_ms,
        "queue_ms": None if seen.queued is None else round(seen.queued * 1000, 3),
        "own_ms": round(seen.own * 1000, 3),
    }
    if seen.span is not None:
        fields["trace_id"] = seen.span.trace_id
    logger.info("%s %s %d", seen.request_id, seen.endpoint, seen.status, extra={"fields": fields})
