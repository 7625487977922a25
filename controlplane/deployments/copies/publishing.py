"""Publish copies of base models, and adapters' homes on them, to gateways."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from django.conf import settings
from django.db.models import QuerySet

from contracts.base_routes import AdapterHomes, CanaryRoute, CopyRoute, SageMakerTarget
from contracts.capabilities.capability import BaseNeeds
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_route
from controlplane.deployments.capabilities import absent_routes, base_needs, capable_route
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import AdapterRule, Copy, Deployment, Target
from controlplane.deployments.models.credentials import credentials_seal
from controlplane.deployments.scaling.selectors import hold_seconds
from controlplane.errors import UnsealError
from controlplane.routes.selectors import route_base
from controlplane.routes.services import route_set

logger = logging.getLogger(__name__)


def base_publish(base_model: BaseModel) -> None:
    """Publish a base model's copies, hold time and adapter homes to gateways."""
    publish_locked(BaseModel.objects.select_for_update().get(pk=base_model.pk))


def homes_publish(base_model: BaseModel) -> None:
    """Publish the base model if the adapter homes or copies that gateways know are outdated."""
    rows = list(_copies(base_model))
    known = route_base(base_model=base_model.name)
    homes = homes_of(base_model_id=base_model.pk, copies={copy.pk for copy in rows})
    if known is None:
        outdated = bool(homes)
    else:
        # After a change of the fleet token, gateways need the credentials sealed anew.
        outdated = homes != known.homes or _routes(base_model, rows) != known.copies
    if outdated:
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
    copies = _routes(base_model, rows)
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
    return Copy.objects.filter(base_model_id=base_model.pk).select_related("deployment__target")


def _routes(base_model: BaseModel, copies: Sequence[Copy]) -> tuple[CopyRoute, ...]:
    """Return the routes of copies, without those whose credentials are known neither here nor by gateways."""
    needs = base_needs(base_model)
    sealed = _sealed_for_gateways(base_model, copies)
    return tuple(_route(copy, needs, sealed[copy.pk]) for copy in copies if copy.pk in sealed)


def _route(copy: Copy, needs: BaseNeeds, credentials: str) -> CopyRoute:
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
    return CopyRoute(
        copy.pk,
        copy.kind,
        copy.url,
        copy.loads_adapters,
        target,
        copy.merged_adapter,
        credentials=credentials,
        max_adapters=_max_adapters(copy),
        **capable_route(copy, needs),
    )


def _max_adapters(copy: Copy) -> int:
    """Return how many adapters vLLM's cache in host memory holds, where gateways alone load them; else 0."""
    deployment = copy.deployment
    if deployment is None or copy.kind != Copy.Kind.OPENAI_HTTP:
        return 0
    if deployment.hosting != Deployment.Hosting.ON_DEMAND:
        return 0
    options = deployment.options
    if deployment.target.kind != Target.Kind.LOCAL and not {"max_cpu_loras", "max_loras"} & set(options):
        return 0  # others configured the server
    stated = {name: options[name] for name in ("max_cpu_loras", "max_loras") if name in options}
    return LmiOptions(**stated).cpu_loras


def _sealed_for_gateways(base_model: BaseModel, copies: Sequence[Copy]) -> Mapping[str, str]:
    """Return each copy's credentials, sealed for gateways, by id.

    Credentials that cannot be opened are those that gateways already have; a copy without such is left out,
    since its server would refuse every request.
    """
    token, found = settings.GRAFTWORK.fleet_token, {}
    for copy in copies:
        try:
            found[copy.pk] = credentials_seal(copy.credentials, fleet_token=token, copy_id=copy.pk)
        except UnsealError as error:
            known = route_base(base_model=base_model.name)
            before = [route for route in (known.copies if known else ()) if route.id == copy.pk]
            logger.error("copy %s %s: %s", copy.pk, "keeps its route" if before else "has no route", error)
            found |= {route.id: route.credentials for route in before}
    return found
