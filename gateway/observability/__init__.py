"""Observability: metrics, traces and logs. See docs/observability.md.

`Observer` is called at each request's begin and end. Nothing here waits, and nothing here fails a request.
"""

from gateway.observability.observer import Observer
from gateway.observability.request_trace import RequestTrace

__all__ = ["Observer", "RequestTrace"]
