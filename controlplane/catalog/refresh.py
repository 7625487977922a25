"""Reads a registered base model's checkpoint again, for what an older release did not read from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from django.db import transaction

from controlplane.catalog.checkpoint import Checkpoint, read_checkpoint
from controlplane.catalog.checkpoint_sources import checkpoint_source
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_route
from controlplane.errors import ConflictError
from controlplane.platform.audit.services import audit_record
from controlplane.routes.selectors import route_base
from controlplane.routes.services import route_set

_READ: Final = ("max_model_len", "dtype", "quantization", "modules", "image_tokens")
_OF_ROUTE: Final = ("max_model_len", "architecture", "quantization", "image_tokens")


def base_model_refresh(*, base_model: BaseModel) -> BaseModel:
    """Read config.json and the headers again, store what they say, and publish it.

    Side effect: adapters that are registered from then on are checked against the new shapes.

    Raises:
        InvalidInputError: the checkpoint is missing or malformed.
        UnavailableError: the source does not answer.
        ConflictError: the source has another model now.
    """
    found = read_checkpoint(checkpoint_source(base_model.source))
    with transaction.atomic():
        # Copies are published under the same lock, so the route entry is complete.
        row = BaseModel.objects.select_for_update().get(pk=base_model.pk)
        _demand_same_model(row, found)
        before = _summary(row)
        for name in _READ:
            setattr(row, name, getattr(found, name))
        row.image_tokens = asdict(found.image_tokens)
        row.save(update_fields=_READ)
        fresh = base_model_route(base_model=row)
        published = route_base(base_model=row.name) or fresh
        entry = replace(published, **{name: getattr(fresh, name) for name in _OF_ROUTE})
        if entry != published:
            route_set(path=f"bases/{row.name}", entry=entry)
        audit_record(tenant="", action="base_model.refresh", target=row, before=before, after=_summary(row))
    return row


def _demand_same_model(row: BaseModel, found: Checkpoint) -> None:
    """Raise ConflictError if a layer has another shape than registered adapters were checked against."""
    remedy = "the source has another model now: register it under another name"
    if found.architecture != row.architecture:
        raise ConflictError(f"architecture {found.architecture}, registered was {row.architecture}: {remedy}")
    stored: Mapping[str, Sequence[int]] = row.modules
    for name, shape in stored.items():
        new = found.modules.get(name)
        if new is None or list(new) != list(shape):
            held = "no such tensor" if new is None else f"shape {list(new)}"
            raise ConflictError(f"{name}: {held}, registered was {list(shape)}: {remedy}")


def _summary(row: BaseModel) -> dict[str, Any]:
    """Return what the audit log records: the number of modules stands for their shapes."""
    values = {name: getattr(row, name) for name in _READ}
    return values | {"modules": len(row.modules)}
