"""No request writes more to the server's disk than its path allows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from django.urls import reverse

from controlplane.asgi import application
from controlplane.platform.http.body_limit import BodyLimit, Message, Receive, Scope, Send


def answer(app: Any, path: str, chunks: Sequence[bytes], *, declared: bytes | None = None) -> tuple[int, int]:
    """Status, and how many chunks were taken."""
    waiting, sent = list(chunks), list[Message]()

    async def receive() -> Message:
        if not waiting:
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.request", "body": waiting.pop(0), "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    headers += [(b"content-length", declared)] if declared is not None else []
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
        "root_path": "",
        "scheme": "http",
        "server": ("localhost", 80),
    }
    asyncio.run(app(scope, receive, send))
    (start,) = (message for message in sent if message["type"] == "http.response.start")
    return int(start["status"]), len(chunks) - len(waiting)


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, as Django does, and answer 200 unless the client disconnected."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if not message["more_body"]:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            return


@pytest.mark.parametrize(
    ("path", "sizes", "expected"),
    [
        ("/login", [10], (200, 1)),
        ("/login", [10, 1, 10], (413, 2)),
        ("/api/v1/keys", [11], (413, 1)),
        ("/api/v1/adapters", [10, 10], (200, 2)),
        ("/api/v1/adapters/pirate/versions", [90, 11, 5], (413, 2)),
        (reverse("console:adapter-register", args=["acme"]), [90, 10], (200, 2)),
        ("/adapters/new", [90, 10], (413, 1)),
        ("/api/v1/adaptersx", [11], (413, 1)),
    ],
)
def test_chunks_are_counted(path: str, sizes: list[int], expected: tuple[int, int]) -> None:
    app = BodyLimit(inner, limit=10, upload_limit=100)
    assert answer(app, path, [bytes(size) for size in sizes]) == expected


@pytest.mark.parametrize("declared", [b"11", b"-1", b"x"])
def test_a_declared_length_is_judged_before_anything_is_read(declared: bytes) -> None:
    app = BodyLimit(inner, limit=10, upload_limit=100)
    assert answer(app, "/login", [b"x"], declared=declared) == (413, 0)


def test_the_application_is_bounded() -> None:
    assert answer(application, "/api/v1/keys", [], declared=b"5000000000") == (413, 0)
    status, taken = answer(application, "/api/v1/keys", [bytes(1 << 20)] * 8)
    assert (status, taken) == (413, 3)


def test_pieces_of_uploads_are_sent_by_patch_alone() -> None:
    app = BodyLimit(inner, limit=10, upload_limit=100)
    assert answer(app, "/api/v1/uploads/x", [b"x" * 50], declared=b"50")[0] == 413
    assert answer(app, "/api/v1/adapters", [b"x" * 50], declared=b"50")[0] == 200
