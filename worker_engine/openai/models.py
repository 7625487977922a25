"""The models that can be named, and vLLM's routes that add and remove adapters among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from contracts.openai.kinds import Flag, Kind, Text
from worker_engine.adapters.registry import NAME_PATTERN
from worker_engine.errors import AdapterFilesNotFound, InvalidRequest, ModelNotFound
from worker_engine.http.routes import SERVICE, Route
from worker_engine.openai.body import parse_object
from worker_engine.openai.fields import Fields
from worker_engine.openai.parameters import object_schema
from worker_engine.service import Service

_NAME: Final = Text(max_length=256)
_PATH: Final = Text(max_length=4096)
_FLAGS: Final = {"load_inplace": Flag(), "pin": Flag()}
_LOAD: Final[Mapping[str, Kind]] = {"lora_name": _NAME, "lora_path": _PATH, **_FLAGS}
_UNLOAD: Final[Mapping[str, Kind]] = {"lora_name": _NAME}


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models: the base model, then each adapter with the base as its parent."""
    return web.json_response({"object": "list", "data": list(_models(request.app[SERVICE]).values())})


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{model}."""
    name = request.match_info["model"]
    if (model := _models(request.app[SERVICE]).get(name)) is None:
        raise ModelNotFound(f"The model {name[:256]!r} does not exist.", param="model")
    return web.json_response(model)


def _models(service: Service) -> dict[str, dict[str, Any]]:
    """OpenAI's model objects by name; `created` is when this worker began to serve."""
    base = service.config.served_model_name
    shared = {"object": "model", "created": service.started_at, "owned_by": "graftwork"}
    limit = {"max_model_len": service.engine.max_model_len}
    adapters = [
        {"id": item.name, **shared, "root": item.src, "parent": base, **limit, "sha256": item.ref.sha256}
        for item in service.registry
    ]
    return {
        base: {"id": base, **shared, "root": base, "parent": None, **limit},
        **{str(item["id"]): item for item in adapters},
    }


async def load_lora_adapter(request: web.Request) -> web.Response:
    """POST /v1/load_lora_adapter."""
    fields = Fields(parse_object(await request.read()))
    fields.refuse_others(_LOAD)
    name, path = fields.require("lora_name", _NAME), fields.require("lora_path", _PATH)
    flags = {key: fields.read(key, flag) for key, flag in _FLAGS.items()}
    try:
        await request.app[SERVICE].registry.register(
            name, path, pin=flags["pin"], replace=flags["load_inplace"]
        )
    except (InvalidRequest, AdapterFilesNotFound) as error:
        error.param = {"name": "lora_name", "src": "lora_path", None: "lora_path"}.get(error.param)
        raise
    return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")


async def unload_lora_adapter(request: web.Request) -> web.Response:
    """POST /v1/unload_lora_adapter."""
    fields = Fields(parse_object(await request.read()))
    fields.refuse_others(_UNLOAD)
    name = fields.require("lora_name", _NAME)
    request.app[SERVICE].registry.unregister(name, param="lora_name")
    return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


_LOAD_BODY: Final = object_schema(_LOAD, ["lora_name", "lora_path"])
_LOAD_BODY["properties"]["lora_name"]["pattern"] = f"^{NAME_PATTERN}$"
ROUTES: Final = (
    Route("GET", "/v1/models", list_models, "The base model and the adapters registered by name"),
    Route("GET", "/v1/models/{model:.+}", get_model, "One of them; names may hold slashes"),
    Route(
        "POST",
        "/v1/load_lora_adapter",
        load_lora_adapter,
        "Register an adapter by name (as vLLM does)",
        body=_LOAD_BODY,
        produces=("text/plain",),
    ),
    Route(
        "POST",
        "/v1/unload_lora_adapter",
        unload_lora_adapter,
        "Forget an adapter (as vLLM does)",
        body=object_schema(_UNLOAD, ["lora_name"]),
        produces=("text/plain",),
    ),
)
