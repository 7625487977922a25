"""A request's spans: one of itself, and in it one of each attempt, which the backend goes on with."""

from __future__ import annotations

from contracts import genai
from contracts.tracing import Span, Tracing
from contracts.usage_event import UsageEvent
from gateway.observability.seen import Seen


def begin(tracing: Tracing, seen: Seen, traceparent: bytes) -> Span:
    """The span of a request, within the client's own where it sends one."""
    attributes = {
        "http.request.method": "GET" if seen.endpoint == "/v1/models" else "POST",
        "http.route": seen.endpoint,
        "graftwork.request_id": seen.request_id,
    }
    parent = tracing.remote(traceparent.decode("latin-1"))
    name = f"{attributes['http.request.method']} {seen.endpoint}"
    return tracing.span(name, "server", attributes, parent=parent, started_ns=seen.started_ns)


def end(seen: Seen) -> None:
    """Ends the request's span with what is known of it."""
    span = seen.span
    if span is None:
        return
    span.set(
        {
            "http.response.status_code": seen.status,
            "graftwork.outcome": seen.outcome,
            "graftwork.tenant": seen.tenant,
            "graftwork.key_id": seen.key_id,
            "graftwork.own_seconds": round(seen.own, 6),
        }
    )
    if seen.queued is not None:
        span.set({"graftwork.queue_seconds": round(seen.queued, 6)})
    if seen.code:
        span.set(genai.failure(seen.code))
    # By the conventions for HTTP a server's span is an error only when the server is at fault.
    span.end(failed=seen.outcome == "error" and (seen.status >= 500 or seen.status == 200))


def attempt(seen: Seen, *, base: str, copy: str, kind: str, number: int) -> Span | None:
    """The span of a call of a copy."""
    if seen.span is None:
        return None
    attributes = {
        **genai.request(seen.endpoint, base),
        "graftwork.copy": copy,
        "graftwork.backend": kind,
        "graftwork.attempt": number,
    }
    return seen.span.child(genai.span_name(seen.endpoint, base), "client", attributes)


def end_attempt(span: Span, event: UsageEvent) -> None:
    """Ends an attempt's span with what it used."""
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
