"""OpenTelemetry traces of gateway and worker, over OTLP by HTTP; off, and not even imported, by default.

Tracing is on if OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) is set. The SDK reads this and its
other variables (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, ...) itself. A thread of
the SDK sends spans from a bounded queue, so a slow or absent collector loses spans but delays no requests.
Needs the extra `observability`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from contracts.genai import Attributes

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_CLOSE_SECONDS: Final = 3.0
Kind = Literal["server", "client", "internal"]


class TracingUnavailable(RuntimeError):
    """Tracing is configured, but its packages are not installed."""


class Span:
    """One span. `end` must follow."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing, self._span = tracing, span

    @property
    def trace_id(self) -> str:
        """The trace's id, as 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """W3C's `traceparent` header, which continues the trace in another process."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def child(self, name: str, kind: Kind, attributes: Attributes, *, started_ns: int | None = None) -> Span:
        """Start a child span."""
        return self._tracing.span(name, kind, attributes, parent=self._span, started_ns=started_ns)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def end(self, *, failed: bool = False, ended_ns: int | None = None) -> None:
        if failed:
            self._span.set_status(self._tracing.error_status)
        self._span.end(ended_ns)


class Tracing:
    """The tracing of one process."""

    @classmethod
    def start(cls, service: str, environ: Mapping[str, str]) -> Self | None:
        """Return the process's tracing, or None if tracing is not configured.

        Args:
            service: the default of OTEL_SERVICE_NAME.

        Raises:
            TracingUnavailable: the extra is not installed.
        """
        asked = any(environ.get(name) for name in _ENDPOINTS)
        if not asked or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        try:
            return cls(environ.get("OTEL_SERVICE_NAME") or service)
        except ImportError as error:
            raise TracingUnavailable(
                f"{' or '.join(_ENDPOINTS)} enables traces, but {error.name} is not installed: "
                "pip install 'graftwork[observability]'"
            ) from error

    def __init__(self, service: str) -> None:
        # The import takes 30 MB and 0.3 s, so only processes that trace pay for it.
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._api, self._empty = trace, Context()
        self._kinds = {
            "server": trace.SpanKind.SERVER,
            "client": trace.SpanKind.CLIENT,
            "internal": trace.SpanKind.INTERNAL,
        }
        self.error_status = trace.Status(trace.StatusCode.ERROR)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("graftwork")

    def remote(self, traceparent: str) -> Any:
        """Parse a caller's `traceparent` header into its span; None when it is absent or malformed."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        trace_id, span_id, flags = (int(part, 16) for part in match.groups())
        context = self._api.SpanContext(
            trace_id, span_id, is_remote=True, trace_flags=self._api.TraceFlags(flags)
        )
        return self._api.NonRecordingSpan(context)

    def span(
        self,
        name: str,
        kind: Kind,
        attributes: Attributes,
        *,
        parent: Any = None,
        started_ns: int | None = None,
    ) -> Span:
        """Start a span within `parent`, or the root span of a new trace."""
        context = self._api.set_span_in_context(parent or self._api.INVALID_SPAN, self._empty)
        span = self._tracer.start_span(
            name,
            context,
            kind=self._kinds[kind],
            attributes=attributes,
            start_time=started_ns or time.time_ns(),
        )
        return Span(self, span)

    def close(self) -> None:
        """Send the queued spans, for at most 3 s."""
        sender = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        sender.start()
        sender.join(_CLOSE_SECONDS)
