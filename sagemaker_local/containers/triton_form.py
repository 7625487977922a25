"""Triton's /invocations in front of the worker: the generate extension of the repository's default model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.engine import Engine
from sagemaker_local.containers.triton import Model, repository
from sagemaker_local.containers.triton_engine import EngineResponses
from sagemaker_local.containers.triton_utils import (
    InferenceRequest,
    InferenceResponse,
    ResponseSender,
    Tensor,
    TritonError,
    install,
)
from sagemaker_local.copies.command import MODEL_FOLDER

_STATUSES: Final = {TritonError.INVALID_ARG: 400, TritonError.NOT_FOUND: 404, TritonError.UNAVAILABLE: 503}


class TritonForm:
    """Answers /invocations; a Python model of the repository runs in this process."""

    def __init__(self, container: Container, engine: Engine) -> None:
        found = repository(container)
        self._default, self._streams = found.models[found.default], found.inference_type == "generate_stream"
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self._python: Any = None
        if self._default.backend == "python":
            install(self._infer)
            self._python = _load(self._default, container)

    def _infer(self, _: str, inputs: Sequence[Tensor]) -> EngineResponses:
        return EngineResponses(self._engine, inputs, self._loop)

    async def invocations(self, request: web.Request) -> web.StreamResponse:
        try:
            value = json.loads(await request.read())
            inputs = _inputs(value)
        except (ValueError, TypeError) as error:
            return web.json_response(
                {"error": f"failed to parse the request JSON buffer: {error}"}, status=400
            )
        responses = self._responses(inputs)
        first = await anext(responses, None)
        if first is not None and (refusal := first.error()) is not None:
            status = _STATUSES.get(refusal.code(), 500)
            return web.json_response({"error": refusal.message()}, status=status)
        if not self._streams:
            return web.json_response(self._values(first) if first is not None else {})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        response = first
        while response is not None:
            failed = response.error()
            shown = self._values(response) if failed is None else {"error": failed.message()}
            await answer.write(b"data: " + json.dumps(shown).encode() + b"\n\n")
            response = await anext(responses, None)
        return answer

    async def _responses(self, inputs: list[Tensor]) -> AsyncIterator[InferenceResponse]:
        """Yield the default model's responses; the model is told when the caller goes."""
        found: asyncio.Queue[InferenceResponse | None] = asyncio.Queue()
        gone = threading.Event()

        def send(response: InferenceResponse | None, final: bool) -> None:
            for item in ((response,) if response is not None else ()) + ((None,) if final else ()):
                self._loop.call_soon_threadsafe(found.put_nowait, item)

        if self._python is None:
            responses = EngineResponses(self._engine, inputs, self._loop)
            threading.Thread(target=_pass_on, args=(responses, send), daemon=True).start()
        else:
            sender = ResponseSender(send, gone.is_set)
            self._python.execute([InferenceRequest(inputs=inputs, sender=sender)])
        try:
            while (response := await found.get()) is not None:
                yield response
        finally:
            gone.set()

    def _values(self, response: InferenceResponse) -> dict[str, Any]:
        found: dict[str, Any] = {"model_name": self._default.name, "model_version": "1"}
        for tensor in response.output_tensors():
            items = [
                item.decode() if isinstance(item, bytes) else item.item()
                for item in tensor.as_numpy().reshape(-1)
            ]
            found[tensor.name()] = items[0] if len(items) == 1 else items
        return found


def _pass_on(responses: EngineResponses, send: Any) -> None:
    for response in responses:
        send(response, False)
    send(None, True)


def _inputs(value: Any) -> list[Tensor]:
    """Return a request's tensors: its fields, and its parameters as the vLLM backend gets them."""
    if not isinstance(value, dict):
        raise TypeError("expected an object")
    fields = {name: item for name, item in value.items() if name not in ("id", "parameters")}
    parameters = dict(value.get("parameters") or {})
    for name in ("stream", "exclude_input_in_output"):
        if name in parameters:
            fields[name] = parameters.pop(name)
    if parameters and "sampling_parameters" not in fields:
        fields["sampling_parameters"] = json.dumps(parameters)
    return [
        Tensor(name, np.asarray([item.encode() if isinstance(item, str) else item], dtype=_kind(item)))
        for name, item in fields.items()
    ]


def _kind(item: object) -> Any:
    return np.bool_ if isinstance(item, bool) else np.object_


def _load(model: Model, container: Container) -> Any:
    """Return the initialized Python model of the repository."""
    path = model.folder / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("triton_model", path)
    if spec is None or spec.loader is None:
        raise ContractError(f"failed to load {model.name!r}: 1/model.py cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.TritonPythonModel()
    # Paths in parameters are the container's.
    parameters = {
        name: {"string_value": _with_local_paths(text, container)} for name, text in model.parameters.items()
    }
    config = json.dumps({"name": model.name, "parameters": parameters})
    found.initialize({"model_config": config, "model_name": model.name})
    return found


def _with_local_paths(text: str, container: Container) -> str:
    for folder, here in container.folders.items():
        if folder != MODEL_FOLDER:
            text = text.replace(folder, str(Path(here)))
    return text
