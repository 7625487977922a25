"""HTTP requests to the API: authenticated, retried where that helps, with typed errors."""

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
_TRANSIENT: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed."""
_LONGEST_WAIT: Final = 60.0


class Transport:
    """Sends requests below `base_url`.

    A request is repeated up to `retries` times after no answer or a transient failure. It waits as
    `Retry-After` asks, else 0.5, 1, 2 ... seconds, less up to half at random. POSTs are repeated under one
    Idempotency-Key, so that nothing is created twice.
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
        """Closes the connections."""
        self._http.close()

    def read(self, kind: type[T], path: str, **query: Any) -> T:
        """Sends a GET. Raises GraftworkError."""
        return self._decoded(kind, self.send("GET", path, params=_present(query) or None))

    def create(self, kind: type[T], path: str, body: Any = None, **options: Any) -> T:
        """Sends a POST under its own Idempotency-Key. Raises GraftworkError."""
        return self._decoded(kind, self.send("POST", path, json=body, **options))

    def change(self, kind: type[T], method: str, path: str, body: Any, *, etag: str | None = None) -> T:
        """Sends a PUT or PATCH, with `If-Match` if `etag` is given. Raises GraftworkError."""
        return self._decoded(kind, self.send(method, path, json=body, headers=_if_match(etag)))

    def delete(self, path: str, *, etag: str | None = None) -> None:
        """Sends a DELETE. Raises GraftworkError."""
        self.send("DELETE", path, headers=_if_match(etag))

    def etag(self, path: str) -> str:
        """Returns the resource's current ETag. Raises GraftworkError."""
        return str(self.send("GET", path).headers.get("etag", "*"))

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request, and returns the response if its status is below 400. Raises GraftworkError."""
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
            if last or not _is_transient(refusal):
                try:
                    raise refusal
                finally:
                    # The traceback holds this frame, and a local name would keep the sent body alive.
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
    """Decodes JSON as `kind`. Raises ConnectionFailedError for anything else, such as a proxy's page."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ConnectionFailedError(
            f"the response is not from Graftwork's API ({error}): check the URL"
        ) from error


def _is_transient(error: ApiError) -> bool:
    in_progress = error.status == 409 and error.retry_after is not None
    return (error.status in _TRANSIENT or in_progress) and (error.retry_after or 0) <= _LONGEST_WAIT


def _pause(attempt: int, retry_after: float | None) -> float:
    if retry_after is not None:
        return retry_after
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
    return f"{base_url} does not respond ({reason}): check that the URL is right and the server is running"
