"""`python -m sagemaker_local.containers FAMILY ...`: one container of an image family; see the package."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from sagemaker_local.containers import tgi, torchserve, triton, vllm
from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.engine import Engine
from sagemaker_local.containers.tgi_form import TgiForm
from sagemaker_local.containers.vllm_form import VllmForm

_CONTRACTS: Final = {
    "tgi": tgi.settings,
    "triton": triton.settings,
    "pytorch": torchserve.settings,
    "vllm": vllm.settings,
}
_MOST_BYTES: Final = 8 << 20


class Form(Protocol):
    """Answers /invocations as the family does."""

    async def invocations(self, request: web.Request) -> web.StreamResponse: ...


async def _run(family: str, container: Container, port: int, adapters: Path, cache: Path) -> int:
    try:
        settings = _CONTRACTS[family](container)
    except ContractError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    engine = await Engine.start(settings, adapters, cache)
    form = _form(family, container, engine, adapters)

    async def ping(_: web.Request) -> web.Response:
        return web.Response(status=200 if await engine.answers() else 503)

    app = web.Application(client_max_size=_MOST_BYTES)
    app.add_routes([web.get("/ping", ping), web.post("/invocations", form.invocations)])
    if isinstance(form, VllmForm):
        app.add_routes(form.routes)
    # A caller that hangs up ends the worker's request too.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    ended = asyncio.create_task(engine.process.wait())
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    asked = asyncio.create_task(stopped.wait())
    await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
    await runner.cleanup()
    await engine.stop()
    return 0 if stopped.is_set() else 1


def _form(family: str, container: Container, engine: Engine, adapters: Path) -> Form:
    """Return the family's form; Triton's alone needs numpy."""
    if family == "triton":
        from sagemaker_local.containers.triton_form import TritonForm

        return TritonForm(container, engine)
    return VllmForm(container, engine, adapters) if family == "vllm" else TgiForm(container, engine)


def main() -> None:
    """Run one container until it is told to stop, or its worker ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=sorted(_CONTRACTS))
    parser.add_argument("--image", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--adapters-dir", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--folder", action="append", default=[], metavar="IN_CONTAINER=HERE")
    values = parser.parse_args()
    folders = {name: Path(here) for name, _, here in (item.partition("=") for item in values.folder)}
    container = Container(values.image, dict(os.environ), folders)
    sys.exit(asyncio.run(_run(values.family, container, values.port, values.adapters_dir, values.cache_dir)))


if __name__ == "__main__":
    main()
