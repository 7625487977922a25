"""`GET /v1/models` and `/v1/models/{id}`: what the key may call."""

from __future__ import annotations

from typing import Any

from gateway.errors import ModelNotFound
from gateway.routing import Caller, callable_models, resolve
from gateway.wire import RouteTable


def list_models(table: RouteTable, caller: Caller) -> dict[str, Any]:
    """OpenAI's list object."""
    models = callable_models(table, caller.tenant, allowed=caller.models)
    return {"object": "list", "data": [_model(name, base, caller.tenant) for name, base in models]}


def get_model(table: RouteTable, caller: Caller, name: str) -> dict[str, Any]:
    """OpenAI's model object; `@v<n>` names are understood though they are not listed.

    Raises:
        ModelNotFound: unknown, another tenant's, or not for this key.
    """
    tenant = caller.tenant
    for listed, base in callable_models(table, tenant, allowed=caller.models):
        if listed == name:
            return _model(name, base, tenant)
    resolution = resolve(table, tenant, name, allowed=caller.models)
    if resolution.adapter is None:
        raise ModelNotFound(f"The model {name[:200]!r} does not exist.", param="model")
    return _model(name, resolution.base, tenant)


def _model(name: str, base: str, tenant: str) -> dict[str, Any]:
    owner = "graftwork" if name == base else tenant
    model = {"id": name, "object": "model", "created": 0, "owned_by": owner}
    return model if name == base else {**model, "root": base, "parent": base}
