"""Translates a backend's error in mid-stream: to the client's error, and to a fault of the copy or none.

| the backend's error | the client gets | it counts against the copy |
|---|---|---|
| prompt and completion are longer than the context | `context_length_exceeded` | |
| about the request: `invalid_request_error`, or a code of 4xx but 429 | `invalid_value` | |
| the request's time is over: `timeout`, `deadline_exceeded` | `upstream_timeout` | |
| the model cannot complete this request: `generation_failed` | `upstream_error` | |
| vLLM's engine died with the request | `engine_died` | yes |
| any other | `upstream_error` | yes |
"""

from __future__ import annotations

import logging
from typing import Final

from gateway.backends.context_length import describe_overflow
from gateway.errors import (
    BadRequest,
    ContextLengthExceeded,
    EngineDied,
    GatewayError,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
)

logger = logging.getLogger(__name__)

_INVALID: Final = frozenset({"invalid_request_error", "BadRequestError"})
_TIMEOUTS: Final = frozenset({"timeout", "deadline_exceeded"})
"""The worker's own codes, as is _GENERATION."""
_GENERATION: Final = "generation_failed"
ENGINE_DEAD: Final = "EngineCore encountered an issue"
"""Beginning of vLLM's message to each request that its engine has when it dies, and until its server ends."""


def stream_error(error: object, request_id: str) -> GatewayError:
    """Return the error that ends a stream after a backend's `error` event; UpstreamBroken blames the copy."""
    fields = error if isinstance(error, dict) else {}
    code, kind = str(fields.get("code")), str(fields.get("type"))
    # The text may hold paths and repeat the prompt, so it is not passed on, as with a 500.
    logger.warning(
        "request %s: the backend ended its stream: code %.100r, type %.100r", request_id, code, kind
    )
    if str(fields.get("message")).startswith(ENGINE_DEAD):
        return EngineDied()
    if overflow := describe_overflow(str(fields.get("message")), code):
        return ContextLengthExceeded(overflow)
    if kind in _INVALID or _is_4xx(code):
        return BadRequest(
            "The backend cannot complete this request: its schema, grammar or length exceeds what the model "
            f"supports. Simplify or shorten it, or name {request_id} when you report it."
        )
    if code in _TIMEOUTS:
        return UpstreamTimeout("The request timed out before its answer was complete; retry later.")
    text = f"The backend failed in the middle of its answer. Name {request_id} when you report it."
    return UpstreamFailed(text) if code == _GENERATION else UpstreamBroken(text)


def _is_4xx(code: str) -> bool:
    """Return True for an HTTP status 4xx, which some servers give as the code, except 429."""
    return len(code) == 3 and code.startswith("4") and code.isdecimal() and code != "429"
