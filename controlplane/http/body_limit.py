"""Bounds request bodies before Django, which writes a whole body to a temporary file ahead of any check."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_UPLOADS: Final = re.compile(
    r"POST /(?:api/v1|t/[^/]+)/adapters(?:/.*)?|PATCH /api/v1/uploads/[^/]+"
    r"|POST /(?:api/v1|staff)/prompt-sets/?"
)
"""Where files are sent to, by REST and by the web UI."""


class BodyLimit:
    """Answers 413 beyond `limit` bytes, or `upload_limit` on the paths that take files."""

    def __init__(self, application: Application, *, limit: int, upload_limit: int) -> None:
        self._application = application
        self._limit, self._upload_limit = limit, upload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limit = (
            self._upload_limit if _UPLOADS.fullmatch(f"{scope['method']} {scope['path']}") else self._limit
        )
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse(send, limit)
            return
        taken = 0

        async def bounded() -> Message:
            # A body sent in chunks declares no length. To Django it ends like a client that hung up.
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            return {"type": "http.disconnect"} if taken > limit else message

        await self._application(scope, bounded, send)
        if taken > limit:
            await _refuse(send, limit)


async def _refuse(send: Send, limit: int) -> None:
    detail = f"the body is larger than the {limit} bytes that are accepted here"
    error = {"code": "too_large", "detail": detail, "attr": None}
    body = json.dumps({"type": "client_error", "errors": [error]}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
