"""Adapter versions that a job names: found in the routes of its base model."""

from __future__ import annotations

import re
from typing import Final

from contracts.adapters.reference import AdapterRef
from contracts.errors import ContractError
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.routes.selectors import route_adapter, route_refs

_VERSION_NAME: Final = re.compile(r"([a-z0-9-]+)/([a-z0-9-]+)@v([1-9][0-9]{0,8})")


def adapter_version(*, base_model: BaseModel, name: str, field: str) -> AdapterRef:
    """Return the reference of one adapter version.

    Args:
        name: `tenant/adapter@v3`, or the version's engine name.
        field: of the request, in errors.

    Raises:
        InvalidInputError: the name has neither form.
        NotFoundError: the base model has no such version that is ready.
    """
    if match := _VERSION_NAME.fullmatch(name):
        tenant, adapter, version = match.groups()
        route = route_adapter(tenant=tenant, name=adapter)
        if route is None or route.base != base_model.name or int(version) not in route.versions:
            raise _not_found(base_model, name)
        return route.versions[int(version)]
    try:
        refs = route_refs(base_model=base_model.name, names=[name])
    except ContractError:
        raise InvalidInputError(
            f"adapter must be tenant/adapter@v3 or an engine name, got {name[:80]!r}", field=field
        ) from None
    if name not in refs:
        raise _not_found(base_model, name)
    return refs[name]


def _not_found(base_model: BaseModel, name: str) -> NotFoundError:
    return NotFoundError(
        f"{base_model.name} has no ready adapter version {name[:160]!r}: see the adapter's page for its"
        " versions"
    )
