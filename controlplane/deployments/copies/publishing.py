"""Publish copies of base models, and adapters' homes on them, to gateways."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from django.db.models import QuerySet

from contracts.base_routes import AdapterHomes, CanaryRoute, CopyRoute, SageMakerTarget
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_route
from controlplane.deployments.capabilities import absent_routes, base_needs, capable_route
from controlplane.deployments.models import AdapterRule, Copy
from controlplane.deployments.scaling.selectors import hold_seconds
from controlplane.routes.selectors import route_base
from controlplane.routes.services import route_set


def base_publish(base_model: BaseModel) -> None:
    """Publish a base model's copies, hold time and adapter homes to gateways."""
    publish_locked(BaseModel.objects.select_for_update().get(pk=base_model.pk))


def homes_publish(base_model: BaseModel) -> None:
    """Publish the base model if the adapter homes that gateways know are outdated."""
    copies = set(_copies(base_model).values_list("pk", flat=True))
    known = route_base(base_model=base_model.name)
    if homes_of(base_model_id=base_model.pk, copies=copies) != ({} if known is None else known.homes):
        base_publish(base_model)


def homes_of(*, base_model_id: int, copies: Collection[str]) -> dict[str, AdapterHomes]:
    """Return where gateways find adapters that are placed on `copies`, by engine name."""
    rules = AdapterRule.objects.filter(
        deployment__base_model_id=base_model_id,
        deployment__removal_asked_at=None,
        deployment__removed_at=None,
    ).order_by("engine_name", "pk")
    found: dict[str, AdapterHomes] = {}
    for rule in rules:
        known = found.get(rule.engine_name, AdapterHomes())
        at = (*known.at, *(copy for copy in rule.homes if copy in copies))
        away = (*known.away, *(copy for copy in rule.avoided if copy in copies))
        if at or away:
            found[rule.engine_name] = AdapterHomes(at, away)
    return found


def publish_locked(base_model: BaseModel) -> None:
    """Publish a base model whose row is locked, and was read under that lock."""
    rows = list(_copies(base_model))
    needs = base_needs(base_model)
    copies = tuple(replace(_route(copy), **capable_route(copy, needs)) for copy in rows)
    held = hold_seconds(base_model_id=base_model.pk)
    homes = homes_of(base_model_id=base_model.pk, copies={copy.id for copy in copies})
    canary = _canary(rows)
    entry = base_model_route(base_model=base_model)
    entry = replace(
        entry, copies=copies, hold_seconds=held, homes=homes, canary=canary, absent=absent_routes(base_model)
    )
    route_set(path=f"bases/{base_model.name}", entry=entry)


def _canary(copies: Sequence[Copy]) -> CanaryRoute | None:
    """Return the canary's route; None without a canary, or without other copies to get the rest."""
    tried = [copy for copy in copies if copy.canary]
    if not tried or len(tried) == len(copies):
        return None
    ids = tuple(copy.pk for copy in tried)
    return CanaryRoute(tried[0].canary, tried[0].percent, ids)


def _copies(base_model: BaseModel) -> QuerySet[Copy]:
    """Query the current copies; `base_model` may have cached earlier ones."""
    return Copy.objects.filter(base_model_id=base_model.pk)


def _route(copy: Copy) -> CopyRoute:
    target = None
    if copy.kind == Copy.Kind.SAGEMAKER:
        target = SageMakerTarget(
            copy.region,
            copy.endpoint,
            copy.component,
            copy.adapter_naming,
            copy.api,
            copy.container,
            None if copy.loaded is None else tuple(copy.loaded),
        )
    return CopyRoute(copy.pk, copy.kind, copy.url, copy.loads_adapters, target, copy.merged_adapter)
