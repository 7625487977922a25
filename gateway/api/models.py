"""`GET /v1/models` and `/v1/models/{id}`: the models that the key may call."""

from __future__ import annotations

from typing import Any

from contracts.route_table import RouteTable
from gateway.errors import ModelNotFound
from gateway.routing import Caller, callable_models, resolve


def list_models(table: RouteTable, caller: Caller) -> dict[str, Any]:
    """Return OpenAI's list object."""
    models = callable_models(table, caller.tenant, allowed=caller.models)
    return {"object": "list", "data": [_model(table, caller.tenant, name, base) for name, base in models]}


def get_model(table: RouteTable, caller: Caller, name: str) -> dict[str, Any]:
    """Return OpenAI's model object; `@v<n>` names are accepted though they are not listed.

    Raises:
        ModelNotFound: unknown, another tenant's, or not permitted to this key.
    """
    tenant = caller.tenant
    for listed, base in callable_models(table, tenant, allowed=caller.models):
        if listed == name:
            return _model(table, tenant, name, base)
    resolution = resolve(table, tenant, name, allowed=caller.models)
    if resolution.adapter is None:
        raise ModelNotFound(f"The model {name[:200]!r} does not exist.", param="model")
    return _model(table, tenant, name, resolution.base)


def _model(table: RouteTable, tenant: str, name: str, base: str) -> dict[str, Any]:
    owner = "graftwork" if name == base else tenant
    created = table.bases[base].created if name == base else _adapter_created(table, tenant, name)
    model = {"id": name, "object": "model", "created": created, "owned_by": owner}
    return model if name == base else {**model, "root": base, "parent": base}


def _adapter_created(table: RouteTable, tenant: str, model: str) -> int:
    """Return when an alias was made, else when its adapter was registered."""
    name, _, alias = model.partition("@")
    adapter = table.adapters[tenant][name]
    return adapter.aliases_created.get(alias, adapter.created)
