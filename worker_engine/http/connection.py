"""aiohttp's HTTP connections with four changes.

Malformed HTTP is refused in OpenAI's format and logs one line. Responses do not name the server libraries. A
body with a malformed chunk is refused at once. A client that stops reading its response is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import _ErrInfo

from worker_engine.errors import InvalidRequest, RequestError

log = logging.getLogger(__name__)

SERVER: Final = "graftwork"
STALLED_SECONDS: Final = 60.0
"""Without any progress in sending; the request then ends as after a disconnect and frees its slot."""


def error_response(error: RequestError, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error response in OpenAI's format."""
    retry = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return web.json_response(error.to_dict(), status=error.status, headers=retry | (headers or {}))


def reason(error: BaseException) -> str:
    """Return why aiohttp's parser failed, without the offending bytes and without advice."""
    lines = str(error).removeprefix("400, message:").strip().splitlines() or [type(error).__name__]
    return lines[0].partition(". ")[0].rstrip(":")[:200]


class Runner(web.AppRunner):
    """Runs an application on these connections."""

    def __init__(self, app: web.Application, *, stalled_seconds: float = STALLED_SECONDS) -> None:
        super().__init__(app, handler_cancellation=True, shutdown_timeout=2.0)
        self._stalled_seconds = stalled_seconds

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return _Server(server, self._stalled_seconds)


class _Server(web.Server):
    """Copies the application's own server, with this module's connections."""

    def __init__(self, server: web.Server, stalled_seconds: float) -> None:
        super().__init__(
            server.request_handler, request_factory=server.request_factory, handler_cancellation=True
        )
        self._stalled_seconds = stalled_seconds

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._stalled_seconds)


class _Connection(web.RequestHandler):
    __slots__ = ("_stalled_seconds",)

    def __init__(self, server: web.Server, stalled_seconds: float) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._stalled_seconds = stalled_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        # Linux only. The kernel then closes the connection, whether its peer is gone or does not read.
        if peer is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._stalled_seconds * 1000))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and isinstance(broken := self._messages[-1][0], _ErrInfo):
            # aiohttp reports this only after the previous request, whose body would otherwise wait forever.
            bodies = [payload for _, payload in self._messages]
            if self._current_request is not None:
                bodies.append(self._current_request.content)
            for body in bodies:
                if not body.is_eof():
                    body.set_exception(web.RequestPayloadError(reason(broken.exc)))

    def log_exception(self, *args: Any, exc_info: BaseException | None = None, **kw: Any) -> None:
        """Log an unreadable body at info level: it broke off while being discarded, which is not the worker's
        fault.
        """
        if isinstance(exc_info, web.RequestPayloadError):
            log.info("a body cannot be read: %s", reason(exc_info))
        else:
            super().log_exception(*args, exc_info=exc_info, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never reached a handler: malformed requests; re-raise disconnects."""
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, HttpProcessingError):
            log.info("refused what is no HTTP request from %s: %s", request.remote, reason(exc))
            refusal = InvalidRequest(f"this is no HTTP request: {reason(exc)}")
            response: web.StreamResponse = error_response(refusal)
            response.force_close()
        else:
            response = super().handle_error(request, status, exc, message)
        response.headers["Server"] = SERVER
        return response
