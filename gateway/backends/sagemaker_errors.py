"""Translates SageMaker's refusals to the gateway's errors.

| SageMaker's error | the client gets | another copy may be tried |
|---|---|---|
| ModelError, container's 400, 413, 422 | the container's status and text | |
| the same, 424 of LMI: how it refuses a request | 400 | |
| the same, 424, 404 or ValidationError: the adapter is missing | 503 | yes; it is not the copy's fault |
| the same, 429 or 503 | 429, 503 | yes |
| the same, 502, 504 or none | 502 | yes |
| the same, any other | 502 | |
| ValidationError: no capacity | 503 | yes |
| ValidationError: the endpoint or base component is missing | 503 | yes |
| ModelNotReadyException, ThrottlingException (the account's limit, not the tenant's) | 503 | yes |
| ServiceUnavailable, InternalDependencyException | 503 | yes |
| InternalFailure, AccessDeniedException and all others | 502, with details in the log | yes |
| any other ValidationError | 502, with details in the log | |
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from gateway.backends.upstream import Refusal, refused
from gateway.errors import (
    GatewayError,
    PayloadTooLarge,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamUnreachable,
)

logger = logging.getLogger(__name__)

_AGAIN: Final = frozenset({"InternalFailure", "InternalDependencyException"})
_AWAY: Final = frozenset({"ServiceUnavailable", "InternalDependencyException"})
_EXPIRED: Final = frozenset({"ExpiredTokenException", "ExpiredToken"})
_NO_CAPACITY: Final = re.compile(r"no capacity", re.I)
_NOT_THERE: Final = re.compile(r"not found|could not find|does not exist|not in service", re.I)
_LATER: Final = "The model cannot take requests at this moment; retry later."
CAPACITY_SECONDS: Final = "10"
"""A component that is scaled to zero takes minutes to return, and only requests wake it."""
_TOO_LARGE: Final = re.compile(r"(exceed|larger|limit).*\b(size|bytes|payload|body)\b", re.I)
_NO_ADAPTER: Final = re.compile(
    r"adapter.{0,300}(not found|not registered|does not exist|unknown)", re.I | re.S
)
_ADAPTER_PARAMS: Final = frozenset({"adapters", "X-Amzn-SageMaker-Adapter-Identifier", "model"})
_BY_STATUS: Final = {
    400: "ValidationError",
    424: "ModelError",
    429: "ThrottlingException",
    500: "InternalFailure",
    503: "ServiceUnavailable",
    530: "InternalDependencyException",
}


@dataclass(frozen=True, slots=True)
class SageMakerRefusal:
    """An error response of SageMaker's runtime."""

    status: int
    code: str
    message: str
    detail: Mapping[str, Any]

    @classmethod
    def read(cls, refusal: Refusal) -> Self:
        try:
            value = orjson.loads(refusal.body)
        except orjson.JSONDecodeError:
            value = {}
        detail = value if isinstance(value, dict) else {}
        named = refusal.headers.get("x-amzn-errortype") or detail.get("__type") or detail.get("code") or ""
        code = str(named).partition(":")[0].rpartition("#")[2] or _BY_STATUS.get(refusal.status, "")
        message = (
            detail.get("Message") or detail.get("message") or refusal.body[:500].decode("utf-8", "replace")
        )
        return cls(refusal.status, code, str(message), detail)

    @property
    def transient(self) -> bool:
        """A fault of AWS before the model ran: worth one immediate retry."""
        return self.code in _AGAIN

    @property
    def no_capacity(self) -> bool:
        """The base component has no copy."""
        return self.code == "ValidationError" and _NO_CAPACITY.search(self.message) is not None

    @property
    def later(self) -> bool:
        """True if the refusal is unrelated to the request and the copy, and may pass in a moment."""
        return self.transient or self.code in _AWAY or self.code.startswith(("ModelNotReady", "Throttling"))

    @property
    def expired(self) -> bool:
        """The credentials are no longer valid."""
        return self.code in _EXPIRED

    @property
    def container(self) -> tuple[int, bytes] | None:
        """The container's own status and body, if the container refused the request."""
        if self.code != "ModelError":
            return None
        status, text = self.detail.get("OriginalStatusCode"), self.detail.get("OriginalMessage")
        return (status if type(status) is int else 500), str(text or "").encode()

    def error(self, request_id: str, *, adapter: bool, lmi: bool = True) -> GatewayError:
        """Return the client's error.

        Args:
            adapter: an adapter's own component was called.
            lmi: the container is LMI's, whose status 424 is about the request.
        """
        if self.container is not None:
            return _container_error(*self.container, request_id, lmi=lmi)
        if self.code == "ValidationError" and _TOO_LARGE.search(self.message):
            return PayloadTooLarge("The request is larger than SageMaker takes; shorten it.")
        # The text may name accounts and roles, so only the operator's log gets it.
        logger.warning("request %s: SageMaker: %d %s: %s", request_id, self.status, self.code, self.message)
        if self.no_capacity:
            return UpstreamBusy(CAPACITY_SECONDS)
        if self.code == "ValidationError" and _NOT_THERE.search(self.message):
            return adapter_missing() if adapter else UpstreamUnreachable(_LATER)
        if self.code == "ModelNotReadyException" or self.code.startswith("Throttling"):
            return UpstreamBusy("1")
        if self.code in _AWAY:
            return UpstreamUnreachable(_LATER)
        text = f"The backend failed on this request. Name {request_id} when you report it."
        return UpstreamFailed(text) if self.code == "ValidationError" else UpstreamBroken(text)


def adapter_missing() -> UpstreamBusy:
    """Return the error for a copy whose containers do not have the request's adapter."""
    return UpstreamBusy("2", code="adapter_unavailable")


def _container_error(status: int, body: bytes, request_id: str, *, lmi: bool = True) -> GatewayError:
    """Translate a container's error; `status` 0 means that the container did not answer."""
    if status == 424 and lmi:
        message, param = _lmi_error(body)
        if param in _ADAPTER_PARAMS or _NO_ADAPTER.search(message):
            logger.warning("request %s: the container has not loaded the adapter: %s", request_id, message)
            return adapter_missing()
        return refused(400, {"message": message, "param": param})
    if status == 404 and _NO_ADAPTER.search(body.decode("utf-8", "replace")):
        logger.warning("request %s: the container has not loaded the adapter", request_id)
        return adapter_missing()
    headers = {"retry-after": "2"} if status == 503 else {}
    return Refusal(status or 502, body, headers).error(request_id)


def _lmi_error(body: bytes) -> tuple[str, str | None]:
    """Return message and parameter of LMI's `{"error": text, "code": 424}`."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("error"), str):
        param = value.get("param")
        return value["error"], param if isinstance(param, str) else None
    return body[:500].decode("utf-8", "replace"), None
