"""Changes of the catalog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from django.db import transaction

from controlplane.catalog.checkpoint import read_checkpoint
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.routes.selectors import route_adapter_exists
from controlplane.routes.services import route_lock, route_set
from gateway.wire import BaseRoute

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")


def base_model_register(*, name: str, source: str | Path, served_name: str | None = None) -> BaseModel:
    """Reads a checkpoint folder's config.json and headers, records it and publishes it without copies.

    Raises:
        InvalidInputError: the name or the folder is not acceptable.
        ConflictError: the name is taken by a base model or an adapter.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            "a base model's name is 1-63 lower-case letters, digits, inner hyphens and dots", field="name"
        )
    folder = Path(source)
    if not folder.is_absolute():
        raise InvalidInputError(f"source must be an absolute folder, got {str(source)!r}", field="source")
    checkpoint = read_checkpoint(folder)
    with transaction.atomic():
        # Of a base model and an adapter of one name at once, the later finds the earlier.
        route_lock()
        if BaseModel.objects.filter(name=name).exists():
            raise ConflictError(f"there is a base model {name!r} already")
        if route_adapter_exists(name=name):
            raise ConflictError(f"a tenant's adapter is called {name!r}: choose another name")
        base_model = BaseModel.objects.create(
            name=name,
            served_name=served_name or name,
            source=str(folder),
            architecture=checkpoint.architecture,
            max_model_len=checkpoint.max_model_len,
            dtype=checkpoint.dtype,
            modules=checkpoint.modules,
        )
        route_set(path=f"bases/{name}", entry=BaseRoute(base_model.served_name, base_model.max_model_len))
    return base_model
