"""The HTTP client that all backends share: one POST, its errors in the gateway's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson

from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused, UpstreamTimeout, UpstreamUnreachable

CONNECT_SECONDS: Final = 3.0
SILENCE_SECONDS: Final = 300.0
"""Longest wait for the next byte: a long prompt in a long queue."""
_ERROR_BYTES: Final = 64 << 10
_OURS: Final = frozenset({401, 403, 404, 405})
"""4xx that tell of a wrong fleet token, URL or model on our side, never of the client's request."""


class Upstream:
    """A pool of connections to copies."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
            ),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            read_bufsize=1 << 18,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> UpstreamStream:
        """Starts a request; see `Backend.stream` for what it raises."""
        try:
            response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise UpstreamUnreachable("No copy of this model answers at this moment; retry later.") from error
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamTimeout("The backend did not answer in time; retry later.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailed("The backend closed the connection without an answer; retry.") from error
        if response.status == 200:
            return UpstreamStream(response)
        raise await _refusal(response)

    async def close(self) -> None:
        await self._session.close()


class UpstreamStream:
    """A response with HTTP 200 under way."""

    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamTimeout(f"The backend sent nothing for {SILENCE_SECONDS:.0f} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailed("The backend broke off in the middle of its answer.") from error

    def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


async def _refusal(response: aiohttp.ClientResponse) -> GatewayError:
    """The error that a status other than 200 stands for."""
    try:
        body = await response.content.read(_ERROR_BYTES)
    except (aiohttp.ClientError, OSError):
        body = b""
    finally:
        response.close()
    error = _openai_error(body)
    message = str(error.get("message") or "no message")[:500]
    if not 400 <= response.status < 500 or response.status in _OURS:
        return UpstreamFailed(f"The backend answered {response.status}: {message}")
    code = str(error.get("code") or error.get("type") or response.status)
    if not error:
        text = body[:500].decode("utf-8", "replace") or f"the backend answered {response.status}"
        error = {"message": text, "type": "invalid_request_error", "code": code, "param": None}
    return UpstreamRefused(
        response.status, orjson.dumps({"error": error}), code, response.headers.get("Retry-After")
    )


def _openai_error(body: bytes) -> dict[str, Any]:
    try:
        error = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
