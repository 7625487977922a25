"""A deployment's copies in the route table: they come when it serves, and go before what they lead to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from controlplane.deployments.models import Copy, Deployment
from controlplane.deployments.placements import drain_time
from controlplane.deployments.provisioners.base import Place
from controlplane.deployments.services import copy_register, copy_remove

_KEPT: Final = timedelta(hours=2)
"""How long it is known that a place has left: longer than any request of its runs."""
PATIENCE: Final = timedelta(seconds=60)
"""How long a place that serves may be too busy to answer a look before the routes are without it."""


@transaction.atomic
def places_serve(*, deployment: Deployment, places: Sequence[Place]) -> bool:
    """Makes `places`, and no others, the deployment's copies; nothing is published when they are already.

    A copy that somebody registered by hand at one of the places stays theirs.

    Returns whether a copy left.
    """
    there = Copy.objects.filter(base_model=deployment.base_model)
    own = {_copy_key(copy): copy for copy in there if copy.deployment_id == deployment.pk}
    wanted = {_key(place): place for place in places if _answers(place, own.get(_key(place)))}
    others = {_copy_key(copy) for copy in there if copy.deployment_id != deployment.pk}
    for key, place in wanted.items():
        known = own.get(key)
        if key not in others and (known is None or _manner(known) != _manner_of(place)):
            copy_register(
                base_model=deployment.base_model, kind=place.kind, url=place.url,
                loads_adapters=place.loads_adapters, sagemaker=place.sagemaker, deployment=deployment,
                canary=_share_of(place),
            )  # fmt: skip
    gone = [copy for key, copy in own.items() if key not in wanted]
    for copy in gone:
        copy_remove(copy=copy, by_deployment=True)
    _remember(deployment, [copy.url for copy in gone], [place.url for place in wanted.values()])
    return bool(gone)


def drained(deployment: Deployment) -> dict[str, float]:
    """URLs that left the routes so long ago that no new request comes, and for how many seconds so."""
    now = timezone.now()
    return {
        url: (now - _time(at)).total_seconds() for url, at in deployment.leaving.items() if _time(at) <= now
    }


def routed(deployment: Deployment) -> frozenset[str]:
    """URLs of the base's copies, whoever registered them, and of places that have left of late."""
    there = Copy.objects.filter(base_model=deployment.base_model_id).values_list("url", flat=True)
    return frozenset({*there, *deployment.leaving})


def is_draining(deployment: Deployment) -> bool:
    """Whether something has just left the routes."""
    return any(_time(at) > timezone.now() for at in deployment.leaving.values())


def _answers(place: Place, copy: Copy | None) -> bool:
    """Whether gateways may be sent to it; keeps since when it has not answered."""
    if copy is None:
        return not place.silent
    now = timezone.now()
    since = (copy.silent_since or now) if place.silent else None
    if since != copy.silent_since:
        Copy.objects.filter(pk=copy.pk).update(silent_since=since)
    return since is None or now - since < PATIENCE


def _remember(deployment: Deployment, gone: list[str], back: list[str]) -> None:
    now = timezone.now()
    row = Deployment.objects.select_for_update().get(pk=deployment.pk)
    leaving = {url: at for url, at in row.leaving.items() if url not in back and _time(at) > now - _KEPT}
    leaving |= {url: (now + drain_time()).isoformat() for url in gone}
    if leaving != row.leaving:
        Deployment.objects.filter(pk=deployment.pk).update(leaving=leaving)
        deployment.leaving = leaving


def _time(text: str) -> Any:
    return parse_datetime(text)


def _key(place: Place) -> tuple[str, ...]:
    target = place.sagemaker
    return (place.url, *((target.region, target.endpoint, target.component) if target else ("", "", "")))


def _copy_key(copy: Copy) -> tuple[str, ...]:
    return (copy.url, copy.region, copy.endpoint, copy.component)


def _manner(copy: Copy) -> tuple[Any, ...]:
    naming = (copy.adapter_naming, copy.api) if copy.kind == Copy.Kind.SAGEMAKER else None
    return copy.kind, copy.loads_adapters, naming, (copy.canary, copy.percent)


def _manner_of(place: Place) -> tuple[Any, ...]:
    target = place.sagemaker
    naming = (target.adapters, target.api) if target else None
    return place.kind, place.loads_adapters, naming, _share_of(place)


def _share_of(place: Place) -> tuple[str, int]:
    return ("", 0) if place.share is None else (place.share.name, place.share.percent)
