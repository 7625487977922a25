"""The gateway's errors, and the one place where they become HTTP.

GatewayError
├── BadRequest              400  the body is invalid; a retry does not help
│   ├── UnknownParameter    400
│   ├── MissingParameter    400
│   ├── ContextLengthExceeded 400  the model takes fewer tokens
│   ├── NotServed           400
│   │   ├── AdapterNotServed     no copy of the base model serves what the adapter needs
│   │   ├── EndpointNotServed    no copy of the base model has the endpoint
│   │   └── ImagesNotServed      no copy of the base model reads images
│   ├── PayloadTooLarge     413
│   └── UnsupportedEncoding 415  the body is compressed
├── RequestTimeout          408  the body came too slowly
├── InvalidApiKey           401  unknown, revoked and expired alike
├── NotAllowed              403  the key is valid but restricted: no retry helps
│   ├── EndpointNotAllowed  403
│   ├── AddressNotAllowed   403
│   └── TenantSuspended     403  its operator refuses the tenant's calls until it resumes the tenant
├── ModelNotFound           404  unknown and another tenant's alike
├── NoSuchRoute             404
├── MethodNotAllowed        405
├── IdempotencyConflict     409  the Idempotency-Key belongs to another request: no retry helps
├── IdempotencyInProgress   409  its first request is still running; a retry gets that answer
├── RateLimited             429  a limit is reached: retry after `after` seconds
│   ├── TokensLimited       429  the same, of tokens
│   └── QuotaExceeded       429  a budget is spent: no retry helps before its period ends
├── UpstreamRefused         4xx  the backend's own error about the client's request, passed on
├── UpstreamFailed          502  the backend failed on this request; a retry may help
│   └── UpstreamBroken      502  the request is fine: the copy or the connection to it broke
│       └── EngineDied      502  the copy's engine died with the request: no other copy gets it
├── UpstreamTimeout         504  the backend went silent; a retry may help
└── Unavailable             503  the request is fine: retry after `retry_after` seconds
    ├── RoutesUnavailable        no route table, or one too old to trust
    ├── IdempotencyUnavailable   the record of earlier requests cannot be read
    ├── LimitsUnavailable        the rest of a budget cannot be read
    ├── UsageLogUnavailable      usage cannot be recorded, so no work is accepted
    ├── Stopping                 the gateway is stopping
    ├── AdapterQuarantined       engines died with the adapter, so it is held back for a time
    ├── UpstreamBusy             the backend has no room or lacks the adapter's files; its own Retry-After
    └── UpstreamUnreachable      no copy of the base model answers
        └── Waking               it is scaled to zero, and its first copy did not start in time
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final

import orjson

from contracts.usage_event import UsageStatus

_OF_REQUEST: Final = frozenset({"adapter_unavailable", "deadline_exceeded"})
"""The worker's codes of a 503 that concerns one request only."""


class GatewayError(Exception):
    """Base of the tree. `code` and `type` are OpenAI's where OpenAI has them.

    Attributes:
        status: HTTP status.
        param: name of the invalid parameter, if there is one.
        retry_after: seconds after which a retry may help; None if no retry helps.
        limit: kind of the limit that refused the request, else "".
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retry_after: int | None = None
    limit: str = ""

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


class MissingParameter(BadRequest):
    code = "missing_required_parameter"


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"


class NotServed(BadRequest):
    """The copies do not support the request; it counts neither as a copy's failure nor as its success."""


class AdapterNotServed(NotServed):
    code = "adapter_not_served"


class EndpointNotServed(NotServed):
    """The base model's copies lack the endpoint; a copy that is found to lack it raises this too."""

    code = "endpoint_not_served"


class ImagesNotServed(NotServed):
    code = "images_not_served"


class PayloadTooLarge(BadRequest):
    status = 413
    code = "payload_too_large"


class UnsupportedEncoding(BadRequest):
    status = 415
    code = "unsupported_encoding"


class RequestTimeout(GatewayError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class InvalidApiKey(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class NotAllowed(GatewayError):
    status = 403
    type = "invalid_request_error"
    code = "not_allowed"


class EndpointNotAllowed(NotAllowed):
    code = "missing_scope"


class AddressNotAllowed(NotAllowed):
    code = "ip_not_authorized"


class TenantSuspended(NotAllowed):
    code = "tenant_suspended"


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class NoSuchRoute(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(GatewayError):
    """The path accepts only POST."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class IdempotencyConflict(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "idempotency_conflict"


class IdempotencyInProgress(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "idempotency_in_progress"
    retry_after = 1


class RateLimited(GatewayError):
    """A limit is reached; `after` is in seconds, None when no retry helps."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class TokensLimited(RateLimited):
    type = "tokens"


class QuotaExceeded(RateLimited):
    type = "insufficient_quota"
    code = "insufficient_quota"


class UpstreamRefused(GatewayError):
    """The backend's 4xx about this request, passed on in OpenAI's form."""

    def __init__(self, status: int, body: bytes, code: str, retry_after: str | None = None) -> None:
        super().__init__(f"the backend answered {status}")
        self.upstream_status = status
        self.body = body
        self.upstream_code = code
        self.upstream_retry_after = retry_after


class UpstreamFailed(GatewayError):
    status = 502
    code = "upstream_error"
    retry_after: int | None = 1


class UpstreamBroken(UpstreamFailed):
    """The connection broke, or the copy answered 502, 503 or 504; another copy may be tried."""


class EngineDied(UpstreamBroken):
    """The copy's engine died while it had the request, which may be the cause: nothing sends it again.

    vLLM gives the same answer to later requests until its server ends. Copies whose engine is known to be
    dead get none; a gateway that does not know of the death yet takes it for the request's.
    """

    code = "engine_died"
    retry_after = None

    def __init__(self) -> None:
        super().__init__(
            "The backend's engine ended while it ran this request and others. If this request ends engines "
            "again, change it: its prompt, parameters or adapter may be the cause."
        )


class UpstreamTimeout(GatewayError):
    status = 504
    code = "upstream_timeout"
    retry_after = 1


class Unavailable(GatewayError):
    status = 503
    code = "unavailable"
    retry_after: int = 2


class RoutesUnavailable(Unavailable):
    code = "routes_unavailable"


class IdempotencyUnavailable(Unavailable):
    code = "idempotency_unavailable"


class LimitsUnavailable(Unavailable):
    code = "limits_unavailable"


class UsageLogUnavailable(Unavailable):
    code = "usage_log_unavailable"
    retry_after = 10


class Stopping(Unavailable):
    code = "gateway_stopping"
    retry_after = 1

    def __init__(self) -> None:
        super().__init__("This gateway is shutting down. Retry: another gateway answers the request.")


class AdapterQuarantined(Unavailable):
    code = "adapter_quarantined"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message, param="model")
        self.retry_after = retry_after


class UpstreamBusy(Unavailable):
    """The backend's 503. `after` is its Retry-After header, seconds or a date, passed on.

    `of_copy` is False if only this request is concerned (its adapter's files, its time limit); the copy may
    still accept others.
    """

    code = "upstream_busy"

    def __init__(self, after: str, *, code: str = "") -> None:
        super().__init__("The backend cannot take this request at this moment; retry later.")
        self.after = after
        self.of_copy = code not in _OF_REQUEST


class UpstreamUnreachable(Unavailable):
    code = "upstream_unreachable"

    def __init__(self, message: str, *, retry_after: int = Unavailable.retry_after) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Waking(UpstreamUnreachable):
    code = "model_waking"


class ResponseBroken(RuntimeError):
    """The gateway failed after the response began, so the client gets no error."""


def error_object(error: GatewayError) -> dict[str, dict[str, str | None]]:
    """Return OpenAI's form: `{"error": {message, type, code, param}}`."""
    return {"error": {"message": error.message, "type": error.type, "code": error.code, "param": error.param}}


def error_event(error: GatewayError) -> bytes:
    """Return the server-sent event that ends a stream which fails after its HTTP 200."""
    return b"data: " + orjson.dumps(error_object(error)) + b"\n\n"


def failure_status(error: GatewayError) -> UsageStatus:
    """Return the usage status of an attempt that ended with `error`."""
    refused = isinstance(error, UpstreamRefused) and error.upstream_status != 429
    return "client_error" if refused or isinstance(error, BadRequest) else "error"


def error_code(error: GatewayError) -> str:
    """Return the usage event's `error_code`."""
    return error.upstream_code if isinstance(error, UpstreamRefused) else error.code


def render(error: GatewayError) -> tuple[int, bytes, Mapping[bytes, bytes]]:
    """Return status, body and extra headers of the HTTP response for `error`."""
    if isinstance(error, UpstreamRefused):
        extra = {b"retry-after": error.upstream_retry_after.encode()} if error.upstream_retry_after else {}
        return error.upstream_status, error.body, extra
    headers: dict[bytes, bytes] = {}
    if isinstance(error, RateLimited):
        headers.update(_retry_headers(error))
    elif isinstance(error, UpstreamBusy):
        headers[b"retry-after"] = error.after.encode()
    elif error.retry_after is not None:
        headers[b"retry-after"] = str(error.retry_after).encode()
    if isinstance(error, IdempotencyConflict | EngineDied):
        headers[b"x-should-retry"] = b"false"
    if isinstance(error, MethodNotAllowed):
        headers[b"allow"] = b"POST, OPTIONS"
    if isinstance(error, InvalidApiKey):
        headers[b"www-authenticate"] = b"Bearer"
    return error.status, orjson.dumps(error_object(error)), headers


def _retry_headers(error: RateLimited) -> Mapping[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    if error.after is not None:
        headers[b"retry-after"] = str(max(1, math.ceil(error.after))).encode()
    if error.after is None or isinstance(error, QuotaExceeded):
        # OpenAI's clients obey this header; otherwise they would retry at once, in vain.
        headers[b"x-should-retry"] = b"false"
    else:
        headers[b"retry-after-ms"] = str(max(1, math.ceil(error.after * 1000))).encode()
    return headers
