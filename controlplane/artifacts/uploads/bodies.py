"""Streams the bodies of uploads as they arrive.

Django alone would write each body to a temporary file before the view starts, and lose the received bytes of
an interrupted one.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from django.db import close_old_connections
from rest_framework.request import Request

from controlplane.artifacts.uploads.append import Body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Application = Callable[[Any, Receive, Any], Awaitable[None]]

_PATH: Final = re.compile(r"/api/v1/uploads/[^/]+")
_KEY: Final = "graftwork.body"
_PIECE: Final = 1 << 20


class UploadBodies:
    """Replaces an upload's body by an empty one for Django, and streams the real one to its view."""

    def __init__(self, application: Application, others: Application) -> None:
        """`others` serves every other request."""
        self._application, self._others = application, others

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "PATCH" or not _PATH.fullmatch(scope["path"]):
            await self._others(scope, receive, send)
            return
        body = StreamedBody(receive, asyncio.get_running_loop())
        try:
            await self._application({**without_lengths(scope), _KEY: body}, nothing(), send)
        finally:
            body.close()


class StreamedBody:
    """A body that is read in the view's thread and received in the server's loop, on demand only."""

    def __init__(self, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        self._receive, self._loop = receive, loop
        self._waiting: asyncio.Task[Message] | None = None
        self._rest = b""
        self._last = False
        self.cut = False

    @property
    def ended(self) -> bool:
        return self._last and not self._rest

    def read(self, size: int, *, seconds: float) -> bytes:
        # The wait may be long, so the database connection is released.
        close_old_connections()
        if not self._rest and not self._last:
            coroutine = self._gather(min(size, _PIECE), seconds)
            self._rest = asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _gather(self, size: int, seconds: float) -> bytes:
        """Return the messages' bytes until `size` bytes, the end, or the time limit is reached."""
        data, until = bytearray(), time.monotonic() + seconds
        while len(data) < size and not self._last and (left := until - time.monotonic()) > 0:
            if self._waiting is None:
                self._waiting = asyncio.ensure_future(self._receive())
            # Not cancelled at the time limit: a message already taken would be lost.
            done, _ = await asyncio.wait({self._waiting}, timeout=left)
            if not done:
                break
            message, self._waiting = self._waiting.result(), None
            self.cut = message["type"] == "http.disconnect"
            self._last = self.cut or not message.get("more_body", False)
            data += message.get("body", b"")
        return bytes(data)


class WholeBody:
    """A body in memory, for servers that do not stream."""

    def __init__(self, data: bytes) -> None:
        self._data, self.cut = data, False

    @property
    def ended(self) -> bool:
        return not self._data

    def read(self, size: int, *, seconds: float) -> bytes:
        data, self._data = self._data[:size], self._data[size:]
        return data


def request_body(request: Request) -> Body:
    """Return the body of a request, streamed if `UploadBodies` is in front."""
    streamed: Body | None = getattr(request, "scope", {}).get(_KEY)
    return WholeBody(request._request.body) if streamed is None else streamed


def without_lengths(scope: Any) -> Any:
    """`scope` of a request without a body."""
    lengths = (b"content-length", b"transfer-encoding")
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in lengths]
    return {**scope, "headers": headers}


def nothing() -> Receive:
    """An empty body, then silence."""
    told = False

    async def receive() -> Message:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("nobody ends this wait")

    return receive
