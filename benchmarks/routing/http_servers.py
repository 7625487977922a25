"""Simulated vLLM servers on ports of this machine: `python -m benchmarks.routing.http_servers PORT...`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import orjson
from aiohttp import web

from benchmarks.routing.engine import EngineShape, Job, SimulatedEngine
from benchmarks.routing.gateways import SERVED
from benchmarks.routing.server import Answer, SimulatedServer


def create_app(server: SimulatedServer) -> web.Application:
    """Return an application that serves one simulated server in real time."""

    async def get(request: web.Request) -> web.Response:
        if request.path == "/disk_loads":  # for the benchmark; vLLM has no such path
            return web.json_response(server.engine.disk_loads)
        return _whole(server.get(request.path))

    async def post(request: web.Request) -> web.StreamResponse:
        answer = await server.post(request.path, orjson.loads(await request.read()))
        return _whole(answer) if answer.job is None else await _stream(request, answer.job)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_get("/{path:.*}", get)
    app.router.add_post("/{path:.*}", post)
    return app


def _whole(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body)


async def _stream(request: web.Request, job: Job) -> web.StreamResponse:
    """Send one event with the first token, and one with all others."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await job.started
    await response.write(_event(job, 1, ended=job.answer == 1))
    if job.answer > 1:
        await job.ended
        await response.write(_event(job, job.answer, ended=True))
    await response.write(b"data: [DONE]\n\n")
    return response


def _event(job: Job, tokens: int, *, ended: bool) -> bytes:
    choice = {"index": 0, "text": "x", "finish_reason": "length" if ended else None}
    usage = {"prompt_tokens": job.prompt, "completion_tokens": tokens, "total_tokens": job.prompt + tokens}
    body = {"id": "sim", "object": "text_completion", "created": 1, "model": SERVED}
    return b"data: " + orjson.dumps({**body, "choices": [choice], "usage": usage}) + b"\n\n"


async def serve(ports: Sequence[int], shape: EngineShape) -> None:
    """Serve one simulated server on each port, for ever."""
    engines = []
    for index, port in enumerate(ports):
        server = SimulatedServer(SERVED, SimulatedEngine(shape, index + 1))
        runner = web.AppRunner(create_app(server), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        engines.append(server.engine.run())
    await asyncio.gather(*engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+")
    asyncio.run(serve(parser.parse_args().ports, EngineShape()))


if __name__ == "__main__":
    main()
