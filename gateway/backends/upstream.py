"""The HTTP client that all backends share: one POST, its errors in the gateway's words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson

from gateway.backends.base import BackendRequest
from gateway.errors import (
    GatewayError,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
SILENCE_SECONDS: Final = 300.0
"""Longest wait for a stream's next byte: a long prompt in a long queue."""
WHOLE_SECONDS: Final = 3600.0
"""Longest wait for an answer that comes whole: it is silent until its last token. Hang-ups end it sooner."""
_ERROR_BYTES: Final = 64 << 10
_CLIENTS: Final = frozenset({400, 413, 422, 429})
"""What a backend says about the client's own request. All else is between the backend and the gateway."""


class Upstream:
    """A pool of connections to copies."""

    def __init__(
        self, *, silence_seconds: float = SILENCE_SECONDS, whole_seconds: float = WHOLE_SECONDS
    ) -> None:
        self._silence = {True: silence_seconds, False: whole_seconds}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            read_bufsize=1 << 18,
        )

    async def post(
        self, request: BackendRequest, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> UpstreamStream:
        """Starts `request`; see `Backend.stream` for what it raises."""
        call = request.call
        silence = self._silence[call.stream]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        try:
            response = await self._session.post(
                request.copy.url + call.path,
                data=orjson.dumps(body),
                headers={**headers, "content-type": "application/json", "x-request-id": request.request_id},
                allow_redirects=False,
                timeout=timeout,
            )
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise UpstreamUnreachable("No copy of this model answers at this moment; retry later.") from error
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamTimeout("The backend did not answer in time; retry later.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailed("The backend closed the connection without an answer; retry.") from error
        if response.status == 200:
            return UpstreamStream(response, silence)
        raise await _refusal(response, request.request_id)

    async def close(self) -> None:
        await self._session.close()


class UpstreamStream:
    """A response with HTTP 200 under way."""

    __slots__ = ("_response", "_silence")

    def __init__(self, response: aiohttp.ClientResponse, silence: float) -> None:
        self._response = response
        self._silence = silence

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamTimeout(f"The backend sent nothing for {self._silence:g} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailed("The backend broke off in the middle of its answer.") from error

    def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


async def _refusal(response: aiohttp.ClientResponse, request_id: str) -> GatewayError:
    """The error that a status other than 200 stands for."""
    try:
        body = await response.content.read(_ERROR_BYTES)
    except (aiohttp.ClientError, OSError):
        body = b""
    finally:
        response.close()
    error = _openai_error(body)
    retry_after = response.headers.get("Retry-After")
    if response.status not in _CLIENTS:
        # The text may tell of paths, tokens or other tenants: it is for the operator alone.
        logger.warning("request %s: the backend answered %d: %r", request_id, response.status, body[:500])
        if response.status == 503 and retry_after is not None:
            return UpstreamBusy(retry_after)
        return UpstreamFailed(f"The backend failed on this request. Name {request_id} when you report it.")
    code = str(error.get("code") or error.get("type") or response.status)
    if not error:
        text = body[:500].decode("utf-8", "replace") or f"the backend answered {response.status}"
        error = {"message": text, "type": "invalid_request_error", "code": code, "param": None}
    return UpstreamRefused(response.status, orjson.dumps({"error": error}), code, retry_after)


def _openai_error(body: bytes) -> dict[str, Any]:
    try:
        error = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
