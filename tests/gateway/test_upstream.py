"""The shared HTTP client against a real server: what is waited for, what passes to the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from contracts.base_routes import CopyRoute
from gateway.api.schema import parse
from gateway.backends.base import BackendRequest
from gateway.backends.upstream import Refusal, Upstream, UpstreamStream
from gateway.errors import GatewayError, UpstreamBroken, UpstreamBusy, UpstreamFailed, UpstreamTimeout, render
from gateway.routing import resolve
from tests.gateway import virtual_time
from tests.gateway.conftest import route_table


def request(url: str, *, stream: bool) -> BackendRequest:
    body = {"model": "base", "messages": [{"role": "user", "content": "{}"}], "stream": stream}
    call = parse("/v1/chat/completions", json.dumps(body).encode())
    resolution = resolve(route_table(url), "acme", "base")
    return BackendRequest(call, resolution, CopyRoute("copy-1", "worker", url), "request-1", "", "acme")


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """A client that waits 0.3 s for a stream's next byte and 5 s for a whole answer."""
    client = Upstream(silence_seconds=0.3, whole_seconds=5)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def server(status: int, *, delay: float = 0, retry_after: str | None = None) -> AsyncIterator[str]:
    """URL of a server that answers with `status` after `delay` seconds."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(delay)
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return web.json_response({"error": {"message": "/secret/path"}}, status=status, headers=headers)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def post(url: str, *, stream: bool) -> bytes:
    async with upstream() as client:
        answer: UpstreamStream = await client.post(request(url, stream=stream), {}, {})
        body = await answer.read()
        answer.close()
        return body


def test_a_whole_answer_may_be_silent_for_longer_than_a_stream() -> None:
    async def work() -> None:
        async with server(200, delay=0.8) as url:
            assert b"secret" in await post(url, stream=False)
            with pytest.raises(UpstreamTimeout):
                await post(url, stream=True)

    virtual_time.run(work())


def test_a_full_backend_stays_a_503_with_its_own_retry_after(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> UpstreamBusy:
        async with server(503, retry_after="7") as url:
            with pytest.raises(UpstreamBusy) as caught:
                await post(url, stream=False)
        return caught.value

    status, body, headers = render(asyncio.run(work()))
    assert (status, headers[b"retry-after"]) == (503, b"7")
    assert b"secret" not in body
    assert "request request-1: the backend answered 503" in caplog.text
    assert "secret" not in caplog.text, "the backend's text may repeat the prompt"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, UpstreamFailed), (404, UpstreamFailed), (502, UpstreamBroken), (503, UpstreamBroken)],
)
def test_a_broken_copy_is_told_from_a_request_that_failed(status: int, kind: type[GatewayError]) -> None:
    assert type(Refusal(status, b"", {}).error("request-1")) is kind


@pytest.mark.parametrize(("code", "of_copy"), [("adapter_unavailable", False), ("queue_full", True)])
def test_a_503_about_one_adapter_is_not_about_the_copy(code: str, of_copy: bool) -> None:
    body = json.dumps({"error": {"message": "no", "code": code}}).encode()
    error = Refusal(503, body, {"retry-after": "3"}).error("request-1")
    assert isinstance(error, UpstreamBusy)
    assert (error.of_copy, error.after) == (of_copy, "3")
