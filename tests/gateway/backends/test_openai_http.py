"""OpenAI-compatible servers: what each may be asked about usage, and vLLM's loading of adapters."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import CopyRoute
from contracts.route_table import AdapterRoute
from gateway.api.schema import parse
from gateway.api.sse import event_data
from gateway.backends.base import BackendRequest
from gateway.backends.openai_http import OpenAIHttpBackend
from gateway.backends.upstream import Upstream
from gateway.backends.vllm_parameters import demand_bounded_thought
from gateway.errors import BadRequest, UpstreamBusy, UpstreamFailed, UpstreamRefused
from gateway.routing import resolve
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.fleet import Fleet
from tests.gateway.conftest import route_table
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import TOKEN, Worker, run_worker


def request(
    url: str, *, stream: bool, ref: AdapterRef | None = None, loads: bool = False, text: str = "hello"
) -> BackendRequest:
    table = route_table(url)
    if ref is not None:
        table = replace(table, adapters={"acme": {"bot": AdapterRoute("base", 1, {1: ref})}})
    body = {"model": "bot" if ref else "base", "prompt": text, "max_tokens": 4, "stream": stream}
    call = parse("/v1/completions", json.dumps(body).encode())
    resolution = resolve(table, "acme", call.model, "subject")
    copy = CopyRoute("copy-1", "openai_http", url, loads_adapters=loads)
    return BackendRequest(call, resolution, copy, "request-1", "aa11", "acme")


async def answer(backend: OpenAIHttpBackend, ask: BackendRequest) -> bytes:
    stream = await backend.stream(ask)
    try:
        body = b""
        while part := await stream.read():
            body += part
        return body
    finally:
        stream.close()


@asynccontextmanager
async def strict_server(knows: int) -> AsyncIterator[tuple[str, list[Any]]]:
    """Takes the first `knows` of include_usage and continuous_usage_stats, and refuses as OpenAI does."""
    asked: list[Any] = []

    async def complete(http: web.Request) -> web.Response:
        body = await http.json()
        options = body.get("stream_options")
        asked.append(options)
        unknown = None
        if knows == 0 and options is not None:
            unknown = "stream_options"
        elif knows == 1 and options is not None and "continuous_usage_stats" in options:
            unknown = "stream_options.continuous_usage_stats"
        elif body["prompt"].startswith("quote"):
            # A refusal that quotes the client.
            unknown = body["prompt"]
        if unknown:
            error = {"message": f"Unknown parameter: '{unknown}'.", "code": "unknown_parameter"}
            return web.json_response({"error": error}, status=400)
        return web.Response(text="data: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("knows", [0, 1, 2])
def test_a_server_is_asked_for_as_much_usage_as_it_reports(knows: int) -> None:
    levels = [{"include_usage": True, "continuous_usage_stats": True}, {"include_usage": True}, None]

    async def work() -> list[Any]:
        async with strict_server(knows) as (url, asked):
            backend = OpenAIHttpBackend(Upstream(), CopyHeaders("", ""), Fleet())
            for _ in range(2):
                assert await answer(backend, request(url, stream=True)) == b"data: [DONE]\n\n"
            await backend.close()
            return asked

    # A parameter that the server refused once is not sent again.
    assert asyncio.run(work()) == [*levels[: 3 - knows], levels[2 - knows]]


def test_a_refusal_that_quotes_the_client_changes_nothing() -> None:
    async def work() -> list[Any]:
        async with strict_server(2) as (url, asked):
            backend = OpenAIHttpBackend(Upstream(), CopyHeaders("", ""), Fleet())
            with pytest.raises(UpstreamRefused):
                await answer(backend, request(url, stream=True, text="quote stream_options"))
            del asked[:]
            await answer(backend, request(url, stream=True))
            await backend.close()
            return asked

    assert asyncio.run(work()) == [{"include_usage": True, "continuous_usage_stats": True}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_does_not_stream_this_request_is_asked_without(stream: bool) -> None:
    """vLLM refuses prompt log probabilities in a stream, and older llama.cpp refuses tools."""
    asked: list[bool] = []

    async def complete(http: web.Request) -> web.Response:
        asked.append("stream" in await http.json())
        if asked[-1]:
            error = {"message": "Cannot use this with stream", "code": 400}
            return web.json_response({"error": error}, status=400)
        return web.json_response({"choices": []})

    async def work() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        backend = OpenAIHttpBackend(Upstream(), CopyHeaders("", ""), Fleet())
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            for _ in range(2):
                if stream:
                    with pytest.raises(UpstreamRefused):
                        await answer(backend, request(url, stream=True))
                else:
                    assert await answer(backend, request(url, stream=False)) == b'{"choices": []}'
        finally:
            await backend.close()
            await runner.cleanup()

    asyncio.run(work())
    # Another request may be streamed: the refusal is not remembered.
    assert asked == ([True] * 2 if stream else [True, False] * 2)


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Worker, Path]]:
    """A server with vLLM's routes that may load adapters from a folder: here, our worker."""
    folder = tmp_path_factory.mktemp("server")
    # Beside the folder that is served at the start: vLLM's answer to an unknown model is what is tested.
    root = folder / "adapters"
    root.mkdir()
    with run_worker(tiny_model, folder, "--adapters-dir", str(root), "--memory-gib", "0.02") as worker:
        for name in ("plain", "all"):
            shutil.copytree(tiny_adapters[name], root / name)
        yield worker, root


def loaded_ref(root: Path, name: str) -> AdapterRef:
    ref = adapter_ref(root / name, name=name)
    return replace(ref, uri=(root / name).as_uri() + "/")


def test_an_adapter_that_the_server_lacks_is_loaded_once(server: tuple[Worker, Path]) -> None:
    worker, root = server
    url, ref = f"http://127.0.0.1:{worker.port}", loaded_ref(root, "plain")

    async def work() -> list[bytes]:
        backend = OpenAIHttpBackend(Upstream(), CopyHeaders("", TOKEN), Fleet())
        asks = [request(url, stream=False, ref=ref, loads=True) for _ in range(8)]
        try:
            return await asyncio.gather(*(answer(backend, ask) for ask in asks))
        finally:
            await backend.close()

    names = {json.loads(event)["model"] for body in asyncio.run(work()) for event in event_data(body)[:-1]}
    assert names == {ref.name}
    status, listed = worker.call("/adapters")
    assert (status, [item["name"] for item in listed["adapters"]]) == (200, [ref.name])


def test_without_leave_nothing_is_loaded(
    server: tuple[Worker, Path], caplog: pytest.LogCaptureFixture
) -> None:
    worker, root = server
    url, ref = f"http://127.0.0.1:{worker.port}", loaded_ref(root, "all")

    async def work(loads: bool, ref: AdapterRef) -> None:
        backend = OpenAIHttpBackend(Upstream(), CopyHeaders("", TOKEN), Fleet())
        try:
            await answer(backend, request(url, stream=False, ref=ref, loads=loads))
        finally:
            await backend.close()

    with pytest.raises(UpstreamFailed):
        asyncio.run(work(False, ref))
    with pytest.raises(UpstreamBusy) as caught:
        asyncio.run(work(True, replace(ref, uri="file:///nowhere/")))
    assert not caught.value.of_copy, "the copy goes on with other requests, and another copy is tried"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in caplog.text
    assert ref.name not in str(worker.call("/adapters"))


@pytest.mark.parametrize(
    ("engine", "serves"),
    [("vLLM 0.19.0", False), ("vLLM 0.1", False), ("vLLM 0.19.1", True), ("vLLM 0.32.0", True), ("", True)],
)
def test_a_bound_that_an_old_version_ignores_is_refused(engine: str, serves: bool) -> None:
    body = {"model": "base", "messages": [{"role": "user", "content": "x"}], "thinking_token_budget": 9}
    ask = request("http://x", stream=True)
    copy = replace(ask.copy, engine=engine)
    ask = replace(ask, call=parse("/v1/chat/completions", json.dumps(body).encode()), copy=copy)
    if serves:
        demand_bounded_thought(ask)
        return
    with pytest.raises(BadRequest) as caught:
        demand_bounded_thought(ask)
    assert caught.value.param == "thinking_token_budget"


@pytest.mark.parametrize(
    ("engine", "sent"),
    [
        ("vLLM 0.8.5", False),
        ("vLLM 0.9.2", False),
        ("vLLM 0.10.0", True),
        ("vLLM 0.32.0", True),
        ("vLLM dev", True),
        ("vLLM 0.1.dev1+g1a2b3c4", True),
        ("", True),
    ],
)
def test_a_cache_salt_is_sent_where_the_version_knows_it(engine: str, sent: bool) -> None:
    """Completions have had it since 0.10; where the engine is not known, tenants' prefixes stay apart."""
    bodies: list[dict[str, Any]] = []

    async def complete(http: web.Request) -> web.Response:
        bodies.append(await http.json())
        return web.json_response({"choices": []})

    async def work() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        backend = OpenAIHttpBackend(Upstream(), CopyHeaders("", ""), Fleet())
        ask = request(f"http://127.0.0.1:{runner.addresses[0][1]}", stream=False)
        ask.copy = replace(ask.copy, engine=engine)
        try:
            await answer(backend, ask)
        finally:
            await backend.close()
            await runner.cleanup()

    asyncio.run(work())
    assert ("cache_salt" in bodies[0]) is sent
