"""A request's spans: one of the request, with a child for each attempt that the backend continues."""

from __future__ import annotations

from contracts import genai
from contracts.tracing import Span, Tracing
from contracts.usage_event import UsageEvent
from gateway.observability.request_trace import RequestTrace


def begin(tracing: Tracing, trace: RequestTrace, traceparent: bytes) -> Span:
    """Start a request's span, as a child of the client's if it sends one."""
    attributes = {
        "http.request.method": "GET" if trace.endpoint == "/v1/models" else "POST",
        "http.route": trace.endpoint,
        "graftwork.request_id": trace.request_id,
    }
    parent = tracing.remote(traceparent.decode("latin-1"))
    name = f"{attributes['http.request.method']} {trace.endpoint}"
    return tracing.span(name, "server", attributes, parent=parent, started_ns=trace.started_ns)


def end(trace: RequestTrace) -> None:
    """End the request's span with its recorded attributes."""
    span = trace.span
    if span is None:
        return
    span.set(
        {
            "http.response.status_code": trace.status,
            "graftwork.outcome": trace.outcome,
            "graftwork.tenant": trace.tenant,
            "graftwork.key_id": trace.key_id,
            "graftwork.own_seconds": round(trace.own, 6),
        }
    )
    if trace.queued is not None:
        span.set({"graftwork.queue_seconds": round(trace.queued, 6)})
    if trace.code:
        span.set(genai.failure(trace.code))
    # By the HTTP conventions a server's span is an error only if the server is at fault.
    span.end(failed=trace.outcome == "error" and (trace.status >= 500 or trace.status == 200))


def attempt(trace: RequestTrace, *, base: str, copy: str, kind: str, number: int) -> Span | None:
    """Start the span of a call of a copy."""
    if trace.span is None:
        return None
    attributes = {
        **genai.request(trace.endpoint, base),
        "graftwork.copy": copy,
        "graftwork.backend": kind,
        "graftwork.attempt": number,
    }
    return trace.span.child(genai.span_name(trace.endpoint, base), "client", attributes)


def end_attempt(span: Span, event: UsageEvent) -> None:
    """End an attempt's span with its usage."""
    span.set(
        {
            **genai.response(event.adapter or event.base_model),
            **genai.usage(
                prompt=event.prompt_tokens, cached=event.cached_tokens, completion=event.completion_tokens
            ),
            "graftwork.status": event.status,
        }
    )
    if event.ttft_ms is not None:
        span.set(genai.first_token(event.ttft_ms / 1000))
    failed = event.status in ("error", "interrupted")
    if failed:
        span.set(genai.failure(event.status))
    span.end(failed=failed)
