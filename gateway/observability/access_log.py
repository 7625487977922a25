"""The optional access log, one line a request: ids, status, tokens and times, never prompts or answers."""

from __future__ import annotations

import logging
from typing import Any

from gateway.observability.request_trace import RequestTrace

logger = logging.getLogger("gateway.access")


def log_request(trace: RequestTrace, seconds: float) -> None:
    fields: dict[str, Any] = {
        "request_id": trace.request_id,
        "tenant": trace.tenant,
        "key_id": trace.key_id,
        "endpoint": trace.endpoint,
        "model": trace.base,
        "adapter": trace.adapter,
        "copy": trace.copy,
        "attempts": trace.attempts,
        "status": trace.status,
        "outcome": trace.outcome,
        "code": trace.code,
        "prompt_tokens": trace.prompt,
        "cached_tokens": trace.cached,
        "completion_tokens": trace.completion,
        "duration_ms": round(seconds * 1000, 3),
        "ttft_ms": trace.ttft_ms,
        "queue_ms": None if trace.queued is None else round(trace.queued * 1000, 3),
        "own_ms": round(trace.own * 1000, 3),
    }
    if trace.span is not None:
        fields["trace_id"] = trace.span.trace_id
    logger.info("%s %s %d", trace.request_id, trace.endpoint, trace.status, extra={"fields": fields})
