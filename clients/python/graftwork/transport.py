"""One HTTP request to the API: authenticated, repeated where that helps, its errors typed."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import httpx
import msgspec

from graftwork.errors import ApiError, ConnectionFailedError, NotFoundError, api_error
from graftwork.version import VERSION

T = TypeVar("T")

USER_AGENT: Final = f"graftwork-python/{VERSION}"
_PASSING: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed."""
_LONGEST_WAIT: Final = 60.0


class Transport:
    """Sends requests below `base_url`.

    A request is repeated up to `retries` times when no answer came or a passing failure did, after what
    `Retry-After` asks, else after 0.5, 1, 2 ... seconds, less up to half at random. POSTs are repeated under
    one Idempotency-Key, so a creation that was done is not done again.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout: float,
        retries: int,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries
        headers = {"Authorization": f"Bearer {api_key}", "User-Agent": USER_AGENT}
        limits = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._http = httpx.Client(
            base_url=base_url.rstrip("/"), headers=headers, timeout=limits, transport=transport
        )

    def close(self) -> None:
        """Ends its connections."""
        self._http.close()

    def read(self, kind: type[T], path: str, **query: Any) -> T:
        """GET. Raises GraftworkError."""
        return self._decoded(kind, self.send("GET", path, params=_present(query) or None))

    def create(self, kind: type[T], path: str, body: Any = None, **options: Any) -> T:
        """POST under an Idempotency-Key of its own. Raises GraftworkError."""
        return self._decoded(kind, self.send("POST", path, json=body, **options))

    def change(self, kind: type[T], method: str, path: str, body: Any, *, etag: str | None = None) -> T:
        """PUT or PATCH, with `If-Match` when `etag` is given. Raises GraftworkError."""
        return self._decoded(kind, self.send(method, path, json=body, headers=_if_match(etag)))

    def delete(self, path: str, *, etag: str | None = None) -> None:
        """DELETE. Raises GraftworkError."""
        self.send("DELETE", path, headers=_if_match(etag))

    def etag(self, path: str) -> str:
        """The tag of the state in force. Raises GraftworkError."""
        return str(self.send("GET", path).headers.get("etag", "*"))

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer, of a status below 400. Raises GraftworkError."""
        headers = dict(options.pop("headers", None) or {})
        if method == "POST":
            headers.setdefault("Idempotency-Key", str(uuid.uuid4()))
        unknown_outcome = False
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                response = self._http.request(method, path, headers=headers, **options)
            except httpx.TransportError as error:
                if last:
                    raise ConnectionFailedError(_away(self._http.base_url, error)) from error
                unknown_outcome = True
                time.sleep(_pause(attempt, None))
                continue
            if response.status_code < 400:
                return response
            refusal = self._error(response)
            if method == "DELETE" and unknown_outcome and isinstance(refusal, NotFoundError):
                return response  # an attempt whose answer was lost had done it
            if last or not _may_pass(refusal):
                try:
                    raise refusal
                finally:
                    # Its traceback has this frame: named here it would keep the body that was sent.
                    del refusal
            time.sleep(_pause(attempt, refusal.retry_after))
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def _error(response: httpx.Response) -> ApiError:
        return api_error(response.status_code, response.content, response.headers.get("retry-after"))

    @staticmethod
    def _decoded(kind: type[T], response: httpx.Response) -> T:
        return decoded(kind, response.content)


def decoded(kind: type[T], content: bytes) -> T:
    """JSON as `kind`. Raises ConnectionFailedError when it is something else, as a proxy's page."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ConnectionFailedError(
            f"this does not look like Graftwork's API ({error}): check the address"
        ) from error


def _may_pass(error: ApiError) -> bool:
    in_progress = error.status == 409 and error.retry_after is not None
    return (error.status in _PASSING or in_progress) and (error.retry_after or 0) <= _LONGEST_WAIT


def _pause(attempt: int, asked: float | None) -> float:
    if asked is not None:
        return asked
    return float(min(0.5 * 2**attempt, 8.0) * random.uniform(0.5, 1.0))  # noqa: S311  # spread, not secret


def _if_match(etag: str | None) -> Mapping[str, str]:
    return {} if etag is None else {"If-Match": etag}


def _present(query: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }


def _away(base_url: httpx.URL, error: httpx.TransportError) -> str:
    reason = str(error) or type(error).__name__
    return f"{base_url} does not answer ({reason}): is the address right, and is it up?"
