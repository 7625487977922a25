"""vLLM's SageMaker routes in front of the worker: /invocations, /adapters, and its own API.

/invocations overwrites the body's `model` by the header that SageMaker sends for an adapter's component, also
where there is no header. Sources: vllm/entrypoints/serve/{sagemaker,lora}/api_router.py of vLLM,
sagemaker/lora of aws/model-hosting-container-standards, and scripts/docker/vllm/sagemaker_serve.py of
aws/deep-learning-containers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from sagemaker_local.containers.contract import Container
from sagemaker_local.containers.engine import NAME, Engine
from sagemaker_local.containers.vllm import server
from sagemaker_local.copies.artifacts import link_tree

_ADAPTER: Final = "X-Amzn-SageMaker-Adapter-Identifier"
_CUSTOM: Final = "X-Amzn-SageMaker-Custom-Attributes"
_ROUTE: Final = re.compile(r"route=(/[^\s,]+)")
_BASE: Final = re.compile(rb'"model":\s*"%s"' % NAME.encode())
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_SERVED: Final = (_CHAT, _COMPLETIONS)
_NO_HANDLER: Final = "Cannot find suitable handler for request. Expected one of: %s"
_REQUESTS: Final = "['ChatCompletionRequest', 'CompletionRequest']"


class VllmForm:
    """The container's routes."""

    def __init__(self, container: Container, engine: Engine, adapters: Path) -> None:
        """`adapters` is the folder from which the worker loads adapters."""
        self._engine, self._adapters = engine, adapters
        self._server = server(container)
        self._loaded: set[str] = set()
        self._loading = asyncio.Lock()

    @property
    def routes(self) -> list[web.RouteDef]:
        found = [web.post(path, self._own_route) for path in _SERVED]
        if not self._server.loads:
            return found
        return [
            *found,
            web.post("/adapters", self._register),
            web.delete("/adapters/{name}", self._unregister),
        ]

    async def invocations(self, request: web.Request) -> web.StreamResponse:
        route = _ROUTE.search(request.headers.get(_CUSTOM, ""))
        if route is not None and self._server.reads_routes:
            return await self._serve(request, route[1], None)
        return await self._serve(request, "", {"model": request.headers.get(_ADAPTER)})

    async def _own_route(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, request.path, None)

    async def _serve(
        self, request: web.Request, path: str, injected: Mapping[str, Any] | None
    ) -> web.StreamResponse:
        """Answer a request; the body decides the route if `path` is ""."""
        try:
            body = json.loads(await request.read())
        except ValueError as error:
            return _refusal(400, f"JSON decode error: {error}")
        body = {**body, **(injected or {})}
        if not path:
            path = _CHAT if "messages" in body else _COMPLETIONS if "prompt" in body else ""
        if not path:
            return _refusal(400, _NO_HANDLER % _REQUESTS)
        if path not in _SERVED:
            return _refusal(404, "Not Found")
        model = body.get("model")
        if model and model != self._server.served_name and not await self._has(model):
            return _refusal(404, f"The model `{model}` does not exist.", "model")
        body["model"] = model if model in self._loaded else NAME
        return await self._pass_on(request, path, body)

    async def _pass_on(self, request: web.Request, path: str, body: Mapping[str, Any]) -> web.StreamResponse:
        """Return the worker's answer, in which the base model has its served name."""
        url = f"http://127.0.0.1:{self._engine.port}{path}"
        async with self._engine.client.post(url, json=body) as answer:
            if not body.get("stream"):
                content = self._renamed(await answer.read())
                return web.Response(status=answer.status, body=content, content_type=answer.content_type)
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for line in answer.content:
                await response.write(self._renamed(line))
            return response

    def _renamed(self, data: bytes) -> bytes:
        return _BASE.sub(b'"model":' + json.dumps(self._server.served_name).encode(), data)

    async def _has(self, name: str) -> bool:
        """Return True if the adapter is loaded, or the resolver has loaded it now."""
        async with self._loading:
            if name in self._loaded:
                return True
            folder = self._server.resolver
            if folder is None or (found := (folder / name).resolve()).parent != folder.resolve():
                return False
            config = found / "adapter_config.json"
            if not config.is_file():
                return False
            if json.loads(config.read_text()).get("base_model_name_or_path") != self._server.served_name:
                return False
            await asyncio.to_thread(link_tree, found, self._adapters / name)
            return not await self._load(name, self._adapters / name)

    async def _register(self, request: web.Request) -> web.Response:
        given = await _arguments(request)
        name, src = given.get("name"), given.get("src")
        if not name or not src:
            return _refusal(400, "Both 'lora_name' and 'lora_path' must be provided.")
        async with self._loading:
            if name in self._loaded:
                text = (
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True."
                )
                return _refusal(400, text)
            if problem := await self._load(name, Path(src)):
                return _refusal(400, problem)
        return web.Response(text=f"Adapter {name} registered")

    async def _unregister(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._loaded:
            return _refusal(404, f"The lora adapter '{name}' cannot be found.")
        self._loaded.discard(name)
        url = f"http://127.0.0.1:{self._engine.port}/v1/unload_lora_adapter"
        async with self._engine.client.post(url, json={"lora_name": name}):
            return web.Response(text=f"Adapter {name} unregistered")

    async def _load(self, name: str, folder: Path) -> str:
        """Load an adapter into the worker; return "" or why it is not loaded."""
        rank = json.loads((folder / "adapter_config.json").read_text()).get("r", 0)
        if rank > self._server.max_lora_rank:
            return f"LoRA rank {rank} is greater than max_lora_rank {self._server.max_lora_rank}."
        url = f"http://127.0.0.1:{self._engine.port}/v1/load_lora_adapter"
        body = {"lora_name": name, "lora_path": str(folder)}
        async with self._engine.client.post(url, json=body) as answer:
            if answer.status != 200:
                return await answer.text()
        self._loaded.add(name)
        return ""


async def _arguments(request: web.Request) -> Mapping[str, Any]:
    """Return a JSON body's fields, else the query's."""
    try:
        value = json.loads(await request.read())
    except ValueError:
        return request.query
    return value if isinstance(value, dict) else {}


def _refusal(status: int, message: str, param: str | None = None) -> web.Response:
    kind = {400: "BadRequestError", 404: "NotFoundError"}[status]
    error = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": error}, status=status)
