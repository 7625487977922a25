"""Registers and changes base models and their variants."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from django.db import transaction

from contracts.base_routes import PROTECTED_PARAMETERS
from controlplane.catalog.checkpoint import read_checkpoint
from controlplane.catalog.checkpoint_sources import checkpoint_source
from controlplane.catalog.digests import DIGEST_TASK
from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.selectors import base_model_route, variant_users
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.queue import enqueue
from controlplane.platform.sealing import seal
from controlplane.routes.selectors import route_adapter_exists, route_base
from controlplane.routes.services import route_lock, route_set

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_DROPPED: Final = 100
_CHANGEABLE: Final = ("licence", "max_lora_rank", "dropped_parameters")


def base_model_register(
    *, name: str, source: str | Path, served_name: str | None = None, licence: str = "", hub_token: str = ""
) -> BaseModel:
    """Register a base model from its checkpoint's config.json and headers, and publish it without copies.

    A Celery task computes the digests of its files.

    Args:
        source: absolute folder, `s3://bucket/prefix` or `hf://owner/name@revision` (stored as a commit).
        hub_token: Hugging Face token for a private or gated repository; stored sealed.

    Raises:
        InvalidInputError: the name, the token or the source is not acceptable.
        UnavailableError: the source does not answer.
        ConflictError: the name is taken by a base model or an adapter.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            "a base model's name is 1-63 lower-case letters, digits, inner hyphens and dots", field="name"
        )
    if hub_token and not str(source).startswith("hf://"):
        raise InvalidInputError("hub_token is valid only for a source hf://owner/name", field="hub_token")
    found = checkpoint_source(source, hub_token=hub_token)
    checkpoint = read_checkpoint(found)
    with transaction.atomic():
        # The lock orders this with the registration of an adapter of the same name.
        route_lock()
        if BaseModel.objects.filter(name=name).exists():
            raise ConflictError(f"a base model named {name!r} already exists")
        if route_adapter_exists(name=name):
            raise ConflictError(f"a tenant's adapter is called {name!r}: choose another name")
        base_model = BaseModel(
            name=name,
            served_name=served_name or name,
            source=found.uri,
            licence=licence,
            architecture=checkpoint.architecture,
            max_model_len=checkpoint.max_model_len,
            dtype=checkpoint.dtype,
            quantization=checkpoint.quantization,
            modules=checkpoint.modules,
            image_tokens=asdict(checkpoint.image_tokens),
        )
        if hub_token:
            base_model.sealed_hub_token = seal(hub_token, place=base_model.hub_token_place)
        base_model.save()
        route_set(path=f"bases/{name}", entry=base_model_route(base_model=base_model))
        enqueue(DIGEST_TASK, base_model_id=base_model.pk)
        audit_record(tenant="", action="base_model.register", target=base_model, after=snapshot(base_model))
    return base_model


@transaction.atomic
def base_model_update(
    *,
    base_model: BaseModel,
    licence: str | None = None,
    max_lora_rank: int | None = None,
    dropped_parameters: Collection[str] | None = None,
    hub_token: str | None = None,
) -> BaseModel:
    """Replace the given fields. A lower rank limit applies to versions registered from then on.

    Args:
        dropped_parameters: parameters that gateways remove from requests for the model and its adapters.
        hub_token: replaces the Hugging Face token; "" removes it.

    Raises:
        InvalidInputError: the rank is out of bounds, or a parameter must not be dropped.
    """
    # Copies are published under the same lock, so the route entry is complete.
    row = BaseModel.objects.select_for_update().get(pk=base_model.pk)
    before = {name: getattr(row, name) for name in _CHANGEABLE}
    if max_lora_rank is not None:
        if not 1 <= max_lora_rank <= 512:
            raise InvalidInputError("max_lora_rank must be from 1 to 512", field="max_lora_rank")
        row.max_lora_rank = max_lora_rank
    if licence is not None:
        row.licence = licence
    if dropped_parameters is not None:
        row.dropped_parameters = _checked_parameters(dropped_parameters)
    if hub_token is not None:
        row.sealed_hub_token = seal(hub_token, place=row.hub_token_place) if hub_token else ""
    row.save(update_fields=(*_CHANGEABLE, "sealed_hub_token"))
    if row.dropped_parameters != before["dropped_parameters"]:
        published = route_base(base_model=row.name) or base_model_route(base_model=row)
        entry = replace(published, dropped_parameters=tuple(row.dropped_parameters))
        route_set(path=f"bases/{row.name}", entry=entry)
    after = {name: getattr(row, name) for name in _CHANGEABLE}
    audit_record(tenant="", action="base_model.update", target=row, before=before, after=after)
    return row


def _checked_parameters(names: Collection[str]) -> list[str]:
    """Return the names in order, each once. Raises InvalidInputError."""
    found = sorted(set(names))
    if len(found) > _MAX_DROPPED:
        raise _not_droppable(f"list at most {_MAX_DROPPED} parameters")
    for name in found:
        if _PARAMETER.fullmatch(name) is None:
            raise _not_droppable(f"{name[:64]!r} is not a parameter: list names such as logit_bias")
        if name in PROTECTED_PARAMETERS:
            raise _not_droppable(
                f"{name} cannot be dropped, since that changes a request's meaning or cost: leave it out"
            )
    return found


def _not_droppable(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="dropped_parameters")


@transaction.atomic
def variant_create(
    *,
    base_model: BaseModel,
    name: str,
    dtype: str,
    source: str,
    quantization: str = "",
    notes: str = "",
    merged_adapter: str = "",
) -> Variant:
    """Register a variant of a base model's weights. Routes do not hold it.

    Args:
        merged_adapter: engine name of the adapter that is merged into the weights; such a variant serves that
            adapter alone, and only its tenant can see it.

    Raises:
        InvalidInputError: the name or the source is malformed.
        ConflictError: the base has a variant of this name.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            "a variant's name is 1-63 lower-case letters, digits, inner hyphens and dots", field="name"
        )
    base_model = BaseModel.objects.select_for_update().get(pk=base_model.pk)
    if base_model.variants.filter(name=name).exists():
        raise ConflictError(f"base model {base_model.name} has a variant {name!r} already")
    variant = Variant.objects.create(
        base_model=base_model,
        name=name,
        dtype=dtype,
        quantization=quantization,
        source=checkpoint_source(source).uri,
        notes=notes,
        merged_adapter=merged_adapter,
    )
    audit_record(tenant="", action="variant.create", target=variant, after=snapshot(variant))
    return variant


@transaction.atomic
def variant_remove(*, variant: Variant) -> None:
    """Remove a variant.

    Raises:
        ConflictError: a deployment serves it, or rolls out from or to it.
    """
    if users := variant_users(variant):
        raise ConflictError(
            f"variant {variant.name} is in use by {', '.join(users)}: change or remove the deployments first"
        )
    audit_record(tenant="", action="variant.remove", target=variant, before=snapshot(variant))
    variant.delete()
