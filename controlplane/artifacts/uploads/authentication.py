"""Authenticates uploads before the first byte of a body is read and written to the disk.

A request without a live key or session is passed on with an empty body, so that the view answers it: with
401, or the log-in page.
"""

from __future__ import annotations

import json
from collections import Counter
from io import BytesIO
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.base import SessionBase
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.utils.module_loading import import_string

from controlplane.artifacts.uploads.bodies import nothing, without_lengths
from controlplane.platform.http.body_limit import Application, Receive, Scope, Send, takes_files
from controlplane.platform.row_security.scope import Scope as RowScope
from controlplane.platform.row_security.scope import scoped
from controlplane.tenants.selectors import api_key_verify

PER_CALLER: Final = 8
IN_ALL: Final = 64
"""Most file bodies received at once; each can take 2 GB of disk until it is complete."""
SMALL_BYTES: Final = 1 << 20
"""Bodies up to this declared size stay in memory, and have the usual bounds."""


class UploadAuthentication:
    """Admit file bodies of authenticated callers, a bounded number at a time."""

    def __init__(
        self, application: Application, *, per_caller: int = PER_CALLER, in_all: int = IN_ALL
    ) -> None:
        self._application = application
        self._per_caller, self._in_all = per_caller, in_all
        self._receiving: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not takes_files(scope) or _is_small(scope):
            await self._application(scope, receive, send)
            return
        caller = await sync_to_async(_caller, thread_sensitive=False)(scope)
        if not caller:
            await self._application(without_lengths(scope), nothing(), send)
            return
        if self._receiving[caller] >= self._per_caller or self._receiving.total() >= self._in_all:
            await _send_too_many_uploads(send)
            return
        self._receiving[caller] += 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._receiving[caller] -= 1
            if not self._receiving[caller]:
                del self._receiving[caller]


def _is_small(scope: Scope) -> bool:
    declared = dict(scope["headers"]).get(b"content-length", b"")
    return declared.isdigit() and int(declared) <= SMALL_BYTES


def _caller(scope: Scope) -> str:
    """Return the owner, a tenant or user, of a live API key or session; "" without one."""
    request = ASGIRequest({**scope, "method": "GET"}, BytesIO())
    try:
        with scoped(RowScope()):
            scheme, _, key = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() == "bearer":
                proven = api_key_verify(text=key.strip())
                return "" if proven is None else f"tenant:{proven.tenant_id}"
            session = request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
            store: type[SessionBase] = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
            with_session: Any = request
            with_session.session = store(session)
            user = get_user(request) if session else None
            return f"user:{user.pk}" if user is not None and user.is_authenticated else ""
    finally:
        connections.close_all()


async def _send_too_many_uploads(send: Send) -> None:
    """Answer 429 `too_many_uploads` and close the connection."""
    detail = "too many files are being received: send the file again in a few seconds"
    error = {"code": "too_many_uploads", "detail": detail, "attr": None}
    body = json.dumps({"type": "client_error", "errors": [error]}).encode()
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"5"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
