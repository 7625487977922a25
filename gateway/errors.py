"""The gateway's errors, and the one place where they become HTTP.

GatewayError
├── BadRequest              400  the body is not what the API takes; a retry does not help
│   ├── UnknownParameter    400
│   └── PayloadTooLarge     413
├── InvalidApiKey           401  unknown, revoked and expired alike
├── ModelNotFound           404  unknown and another tenant's alike
├── NoSuchRoute             404
├── MethodNotAllowed        405
├── UpstreamRefused         4xx  the backend's own words about the client's request, passed on
├── UpstreamFailed          502  the backend broke; a retry may help
├── UpstreamTimeout         504  the backend went silent; a retry may help
└── Unavailable             503  nothing wrong with the request: retry after `retry_after` seconds
    ├── RoutesUnavailable        no route table, or one too old to trust
    ├── UsageLogUnavailable      usage could not be recorded, so no work is taken
    ├── UpstreamBusy             the backend has no room or lacks the adapter's files; its own Retry-After
    └── UpstreamUnreachable      no copy of the base model answers
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import orjson


class GatewayError(Exception):
    """Base of the tree. `code` and `type` are OpenAI's words where they exist.

    Attributes:
        status: HTTP status.
        param: name of the parameter at fault, if one is.
        retry_after: seconds after which a retry may help, or None when none helps.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(GatewayError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnknownParameter(BadRequest):
    code = "unknown_parameter"


class PayloadTooLarge(BadRequest):
    status = 413
    code = "payload_too_large"


class InvalidApiKey(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class NoSuchRoute(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class UpstreamRefused(GatewayError):
    """The backend's 4xx about this request: its status and its error object pass through unchanged."""

    def __init__(self, status: int, body: bytes, code: str, retry_after: str | None = None) -> None:
        super().__init__(f"the backend answered {status}")
        self.upstream_status = status
        self.body = body
        self.upstream_code = code
        self.upstream_retry_after = retry_after


class UpstreamFailed(GatewayError):
    status = 502
    code = "upstream_error"
    retry_after = 1


class UpstreamTimeout(GatewayError):
    status = 504
    code = "upstream_timeout"
    retry_after = 1


class Unavailable(GatewayError):
    status = 503
    code = "unavailable"
    retry_after = 2


class RoutesUnavailable(Unavailable):
    code = "routes_unavailable"


class UsageLogUnavailable(Unavailable):
    code = "usage_log_unavailable"
    retry_after = 10


class UpstreamBusy(Unavailable):
    """The backend's 503. `after` is its Retry-After header, seconds or a date, passed on."""

    code = "upstream_busy"

    def __init__(self, after: str) -> None:
        super().__init__("The backend cannot take this request at this moment; retry later.")
        self.after = after


class UpstreamUnreachable(Unavailable):
    code = "upstream_unreachable"


def error_object(error: GatewayError) -> dict[str, dict[str, str | None]]:
    """OpenAI's form: `{"error": {message, type, code, param}}`."""
    return {"error": {"message": error.message, "type": error.type, "code": error.code, "param": error.param}}


def error_event(error: GatewayError) -> bytes:
    """The server-sent event that ends a stream which fails after its HTTP 200."""
    return b"data: " + orjson.dumps(error_object(error)) + b"\n\n"


def error_code(error: GatewayError) -> str:
    """What stands in a usage event's `error_code`."""
    return error.upstream_code if isinstance(error, UpstreamRefused) else error.code


def render(error: GatewayError) -> tuple[int, bytes, Mapping[bytes, bytes]]:
    """Status, body and extra headers of the HTTP response that tells of `error`."""
    if isinstance(error, UpstreamRefused):
        extra = {b"retry-after": error.upstream_retry_after.encode()} if error.upstream_retry_after else {}
        return error.upstream_status, error.body, extra
    headers: dict[bytes, bytes] = {}
    if isinstance(error, UpstreamBusy):
        headers[b"retry-after"] = error.after.encode()
    elif error.retry_after is not None:
        headers[b"retry-after"] = str(error.retry_after).encode()
    if isinstance(error, InvalidApiKey):
        headers[b"www-authenticate"] = b"Bearer"
    return error.status, orjson.dumps(error_object(error)), headers
