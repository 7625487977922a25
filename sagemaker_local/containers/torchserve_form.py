"""TorchServe's /invocations, with the toolkit's calls of a handler that runs in this process.

One request runs at a time, as in a container with one worker. The handler's functions are called as
sagemaker-inference 1.10 calls them: each may take the context as one more argument.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from aiohttp import web

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.torchserve import Handler, handler
from sagemaker_local.copies.command import MODEL_FOLDER

_TEXT_SUFFIXES: Final = frozenset({".json", ".txt", ".yaml", ".yml"})
_FUNCTIONS: Final = ("input_fn", "predict_fn", "output_fn")


class Context:
    """TorchServe's context of a request, as far as handlers and the toolkit use it."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self.request_ids = {0: "local"}
        self.content_type = "application/json"
        self.send = send

    def set_response_content_type(self, index: int, value: str) -> None:
        self.content_type = value


class TorchServeForm:
    """Answers /invocations by the handler. The container ends if the model does not load."""

    def __init__(self, container: Container) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="torchserve-"))
        found = handler(container)
        self._handler = Handler(_copied(found.folder, self._folder, container), found.module)
        self._lock, self._model, self._module = threading.Lock(), None, ModuleType("")
        self._loading = asyncio.create_task(asyncio.to_thread(self._load))

    async def answers(self) -> bool:
        """Return True if the model is loaded."""
        return self._loading.done() and self._loading.exception() is None

    async def ended(self) -> None:
        """Return when the model did not load; its error is in the log."""
        try:
            await self._loading
        except Exception as error:
            print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
            return
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Remove the handler's copy."""
        await asyncio.to_thread(shutil.rmtree, self._folder, True)

    def _load(self) -> None:
        _install()
        # As in the container, other modules of the archive's code are importable too.
        sys.path.insert(0, str(self._handler.folder))
        self._module = import_module(self._handler.module)
        if hasattr(self._module, "transform_fn") and any(hasattr(self._module, name) for name in _FUNCTIONS):
            raise ContractError(
                "Cannot use transform_fn implementation in conjunction with input_fn, predict_fn, and/or "
                "output_fn implementation"
            )
        if not hasattr(self._module, "model_fn"):
            raise ContractError(f"{self._handler.module}.py has no model_fn")
        context = Context(lambda _: None)
        self._model = _call(self._module.model_fn, str(self._handler.folder.parent), context=context)

    async def invocations(self, request: web.Request) -> web.StreamResponse:
        data, content_type = await request.read(), request.content_type
        accept = request.headers.get("Accept", "*/*")
        accept = "application/json" if accept == "*/*" else accept
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def send(text: str) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, text)

        context = Context(send)
        # TorchServe does not tell the handler that the caller has gone.
        work = asyncio.create_task(asyncio.to_thread(self._transform, data, content_type, accept, context))
        work.add_done_callback(lambda _: parts.put_nowait(None))
        return await _answer(request, work, parts, context)

    def _transform(self, data: bytes, content_type: str, accept: str, context: Context) -> tuple[Any, str]:
        given = data.decode() if content_type in ("application/json", "text/csv") else data
        with self._lock:
            if (transform := getattr(self._module, "transform_fn", None)) is not None:
                result = _call(transform, self._model, given, content_type, accept, context=context)
            else:
                value = _call(self._module.input_fn, given, content_type, context=context)
                prediction = _call(self._module.predict_fn, value, self._model, context=context)
                result = _call(self._module.output_fn, prediction, accept, context=context)
        return result if isinstance(result, tuple) else (result, accept)


async def _answer(
    request: web.Request,
    work: asyncio.Task[tuple[Any, str]],
    parts: asyncio.Queue[str | None],
    context: Context,
) -> web.StreamResponse:
    """Send the handler's parts, then its result; without parts the answer does not stream."""
    answer: web.StreamResponse | None = None
    while (part := await parts.get()) is not None:
        if answer is None:
            answer = web.StreamResponse(headers={"Content-Type": context.content_type})
            await answer.prepare(request)
        await _write(answer, part)
    try:
        result, content_type = work.result()
    except Exception as error:
        if answer is None:
            return web.Response(status=500, text=f"{error}")
        raise
    body = result.encode() if isinstance(result, str) else bytes(result)
    if answer is None:
        return web.Response(body=body, headers={"Content-Type": content_type})
    await _write(answer, body.decode())
    return answer


async def _write(answer: web.StreamResponse, text: str) -> None:
    try:
        await answer.write(text.encode())
    except ConnectionError:
        return


def _call(function: Callable[..., Any], *values: Any, context: Context) -> Any:
    takes = len(inspect.signature(function).parameters)
    return function(*values, context) if takes == len(values) + 1 else function(*values)


def _copied(folder: Path, into: Path, container: Container) -> Path:
    """Copy the code, with the container's paths in its text files replaced by those on this host."""
    found = into / "code"
    shutil.copytree(folder, found)
    for path in found.rglob("*"):
        if path.suffix in _TEXT_SUFFIXES:
            text = path.read_text()
            for there, here in container.folders.items():
                text = text.replace(there, str(here)) if there != MODEL_FOLDER else text
            path.write_text(text)
    return found


def _install() -> None:
    """Make TorchServe's function for parts of an answer importable."""
    module: Any = ModuleType("ts.handler_utils.utils")

    def send(parts: list[str], request_ids: Any, message: str, status: int, context: Context) -> None:
        context.send(parts[0])

    module.send_intermediate_predict_response = send
    sys.modules |= {"ts": ModuleType("ts"), "ts.handler_utils": ModuleType("ts.handler_utils")}
    sys.modules["ts.handler_utils.utils"] = module
