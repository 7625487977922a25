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

from sagemaker_local.containers import tgi, triton, vllm
from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.engine import Engine
from sagemaker_local.containers.tgi_form import TgiForm
from sagemaker_local.containers.torchserve_form import TorchServeForm
from sagemaker_local.containers.vllm_form import VllmForm

_CONTRACTS: Final = {"tgi": tgi.settings, "triton": triton.settings, "vllm": vllm.settings}
_MOST_BYTES: Final = 8 << 20


class Form(Protocol):
    """Answers /invocations as the family does."""

    async def invocations(self, request: web.Request) -> web.StreamResponse: ...


class Process(Protocol):
    """Process that computes the answers; `ended` returns when it has failed."""

    async def answers(self) -> bool: ...

    async def ended(self) -> None: ...

    async def stop(self) -> None: ...


async def _run(family: str, container: Container, port: int, adapters: Path, cache: Path) -> int:
    try:
        process, form = await _started(family, container, adapters, cache)
    except ContractError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1

    async def ping(_: web.Request) -> web.Response:
        return web.Response(status=200 if await process.answers() else 503)

    app = web.Application(client_max_size=_MOST_BYTES)
    app.add_routes([web.get("/ping", ping), web.post("/invocations", form.invocations)])
    if isinstance(form, VllmForm):
        app.add_routes(form.routes)
    # A caller that hangs up ends the worker's request too.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    ended = asyncio.create_task(process.ended())
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    asked = asyncio.create_task(stopped.wait())
    await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
    await runner.cleanup()
    await process.stop()
    return 0 if stopped.is_set() else 1


async def _started(family: str, container: Container, adapters: Path, cache: Path) -> tuple[Process, Form]:
    """Start what computes the answers: PyTorch's handler itself, else the bundled worker."""
    if family == "pytorch":
        handler = TorchServeForm(container)
        return handler, handler
    engine = await Engine.start(_CONTRACTS[family](container), adapters, cache)
    return engine, _form(family, container, engine, adapters)


def _form(family: str, container: Container, engine: Engine, adapters: Path) -> Form:
    """Return the family's form; Triton's alone needs numpy."""
    if family == "triton":
        from sagemaker_local.containers.triton_form import TritonForm

        return TritonForm(container, engine)
    return VllmForm(container, engine, adapters) if family == "vllm" else TgiForm(container, engine)


def main() -> None:
    """Run one container until it is told to stop, or its worker ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=sorted((*_CONTRACTS, "pytorch")))
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
