"""Reads of base models."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from contracts.base_routes import UNBOUNDED_CONTEXT, BaseRoute
from contracts.image_tokens import ImageTokens
from controlplane.catalog.models import BaseModel, Variant
from controlplane.errors import NotFoundError
from controlplane.platform.row_lookup import row_get
from controlplane.platform.sealing import unseal


def base_model_list() -> QuerySet[BaseModel]:
    """List the base models by name."""
    return BaseModel.objects.prefetch_related("variants", "copies").order_by("name")


def base_model_names(*, part: str) -> QuerySet[BaseModel, str]:
    """List the names of base models that contain `part`, ignoring case."""
    return BaseModel.objects.filter(name__icontains=part).order_by("name").values_list("name", flat=True)


def variant_list(*, base_model: BaseModel, tenant: str | None) -> QuerySet[Variant]:
    """List a base model's variants by name.

    Args:
        tenant: leaves out copies into which another tenant's adapter is merged; None lists all variants.
    """
    rows = Variant.objects.filter(base_model=base_model).order_by("name")
    if tenant is None:
        return rows
    return rows.filter(Q(merged_adapter="") | Q(merged_adapter__startswith=f"t_{tenant}."))


def base_model_find(*, name: str) -> BaseModel | None:
    """Return a base model; None if there is none of this name."""
    return base_model_list().filter(name=name).first()


def base_model_get(*, name: str) -> BaseModel:
    """Return a base model. Raises NotFoundError naming the existing ones."""
    base_model = base_model_find(name=name)
    if base_model is None:
        known = ", ".join(BaseModel.objects.values_list("name", flat=True)) or "none"
        raise NotFoundError(f"base model {name!r} does not exist; existing base models: {known}")
    return base_model


def hub_token(*, repository: str) -> str:
    """Return the token with which a base model of this repository is read; "" without one.

    Args:
        repository: `owner/name`.

    Raises:
        UnsealError: the token's key is gone.
    """
    rows = BaseModel.objects.filter(source__startswith=f"hf://{repository}@").exclude(sealed_hub_token="")
    row = rows.first()
    return unseal(row.sealed_hub_token, place=row.hub_token_place) if row is not None else ""


def base_model_route(*, base_model: BaseModel) -> BaseRoute:
    """Return the base model's route entry without what its deployments add to it."""
    return BaseRoute(
        base_model.served_name,
        base_model.max_model_len or UNBOUNDED_CONTEXT,
        dropped_parameters=tuple(base_model.dropped_parameters),
        created=int(base_model.created_at.timestamp()),
        architecture=base_model.architecture,
        quantization=base_model.quantization,
        image_tokens=image_tokens(base_model),
    )


def image_tokens(base_model: BaseModel) -> ImageTokens | None:
    """Return the bound of an image's tokens; None if an older release registered the base model."""
    rule = base_model.image_tokens
    return None if rule is None else ImageTokens.from_dict(rule)


def variant_get(*, base_model: BaseModel, name: str, tenant: str | None = None) -> Variant:
    """Return a variant of a base model that `variant_list` lists. Raises NotFoundError."""
    rows = variant_list(base_model=base_model, tenant=tenant).filter(name=name)
    return row_get(rows, f"base model {base_model.name} has no variant {name!r}")


def variant_list_all() -> QuerySet[Variant]:
    """List the variants of all base models, by base model and name."""
    return Variant.objects.select_related("base_model").order_by("base_model__name", "name")


def variant_users(variant: Variant) -> list[str]:
    """Name the deployments that serve a variant, or whose active rollout leads from or to it."""
    deployments = variant.base_model.deployments.filter(removed_at=None)
    serving = deployments.filter(variant=variant.name)
    rolling = [
        deployments.filter(**{"rollouts__ended_at": None, f"rollouts__{side}__variant": variant.name})
        for side in ("before", "after")
    ]
    return sorted({item.name for rows in (serving, *rolling) for item in rows})
