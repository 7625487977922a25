"""Changes of the catalog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from django.db import transaction

from controlplane.audit.services import audit_record
from controlplane.audit.snapshot import snapshot
from controlplane.catalog.checkpoint import read_checkpoint
from controlplane.catalog.checkpoint_sources import checkpoint_source
from controlplane.catalog.digests import DIGEST_TASK
from controlplane.catalog.models import BaseModel, Variant
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.queue import enqueue
from controlplane.routes.selectors import route_adapter_exists
from controlplane.routes.services import route_lock, route_set
from gateway.wire import BaseRoute

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")


def base_model_register(
    *, name: str, source: str | Path, served_name: str | None = None, licence: str = ""
) -> BaseModel:
    """Reads a checkpoint's config.json and headers, records it and publishes it without copies.

    A Celery task takes the digests of its files.

    Args:
        source: absolute folder, `s3://bucket/prefix` or `hf://owner/name@revision` (kept as a commit).

    Raises:
        InvalidInputError: the name or the source is not acceptable.
        UnavailableError: the source does not answer.
        ConflictError: the name is taken by a base model or an adapter.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            "a base model's name is 1-63 lower-case letters, digits, inner hyphens and dots", field="name"
        )
    found = checkpoint_source(source)
    checkpoint = read_checkpoint(found)
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
            source=found.uri,
            licence=licence,
            architecture=checkpoint.architecture,
            max_model_len=checkpoint.max_model_len,
            dtype=checkpoint.dtype,
            modules=checkpoint.modules,
        )
        route_set(path=f"bases/{name}", entry=BaseRoute(base_model.served_name, base_model.max_model_len))
        enqueue(DIGEST_TASK, base_model_id=base_model.pk)
        audit_record(tenant="", action="base_model.register", target=base_model, after=snapshot(base_model))
    return base_model


@transaction.atomic
def base_model_update(
    *, base_model: BaseModel, licence: str | None = None, max_lora_rank: int | None = None
) -> BaseModel:
    """Replaces what is given. A lower rank limit holds for versions registered from then on.

    Raises:
        InvalidInputError: the rank is out of its bounds.
    """
    row = BaseModel.objects.select_for_update().get(pk=base_model.pk)
    before = {"licence": row.licence, "max_lora_rank": row.max_lora_rank}
    if max_lora_rank is not None:
        if not 1 <= max_lora_rank <= 512:
            raise InvalidInputError("max_lora_rank must be from 1 to 512", field="max_lora_rank")
        row.max_lora_rank = max_lora_rank
    if licence is not None:
        row.licence = licence
    row.save(update_fields=["licence", "max_lora_rank"])
    after = {"licence": row.licence, "max_lora_rank": row.max_lora_rank}
    audit_record(tenant="", action="base_model.update", target=row, before=before, after=after)
    return row


@transaction.atomic
def variant_create(
    *, base_model: BaseModel, name: str, dtype: str, source: str, quantization: str = "", notes: str = ""
) -> Variant:
    """Records another form of a base model's weights. Routes do not know it.

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
        base_model=base_model, name=name, dtype=dtype, quantization=quantization,
        source=checkpoint_source(source).uri, notes=notes,
    )  # fmt: skip
    audit_record(tenant="", action="variant.create", target=variant, after=snapshot(variant))
    return variant


@transaction.atomic
def variant_remove(*, variant: Variant) -> None:
    """Forgets a variant."""
    audit_record(tenant="", action="variant.remove", target=variant, before=snapshot(variant))
    variant.delete()
