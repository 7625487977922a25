"""Maintain a deployment's copies in the route table.

Copies are added once they serve, and removed before their servers stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from contracts.server_credentials import ServerCredentials
from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.deployments.models import Copy, Deployment
from controlplane.deployments.provisioners.base import Endpoint
from controlplane.errors import UnsealError

_REMEMBERED: Final = timedelta(hours=2)
"""How long a departed endpoint is remembered: longer than any of its requests runs."""
PATIENCE: Final = timedelta(seconds=60)
"""How long a serving endpoint may be too busy to answer before it leaves the routes."""


@transaction.atomic
def copies_sync(*, deployment: Deployment, endpoints: Sequence[Endpoint]) -> bool:
    """Make `endpoints` the deployment's only copies; publishes nothing if they already are.

    A copy that an operator registered at one of the endpoints is not changed.

    Returns:
        True if a copy was removed.
    """
    there = Copy.objects.filter(base_model=deployment.base_model)
    own = {_copy_key(copy): copy for copy in there if copy.deployment_id == deployment.pk}
    wanted = {
        _key(endpoint): endpoint for endpoint in endpoints if _is_routable(endpoint, own.get(_key(endpoint)))
    }
    others = {_copy_key(copy) for copy in there if copy.deployment_id != deployment.pk}
    stated = RunningEngine.of_deployment(deployment)

    def engine_of(endpoint: Endpoint) -> RunningEngine:
        return endpoint.engine or stated

    for key, endpoint in wanted.items():
        known = own.get(key)
        settings = (_endpoint_settings(endpoint, known), engine_of(endpoint))
        if key not in others and (known is None or settings != (_copy_settings(known), _engine(known))):
            copy_register(
                base_model=deployment.base_model,
                kind=endpoint.kind,
                url=endpoint.url,
                loads_adapters=endpoint.loads_adapters,
                sagemaker=endpoint.sagemaker,
                deployment=deployment,
                canary=_share_of(endpoint),
                engine=engine_of(endpoint),
                token=None if endpoint.credentials is None else endpoint.credentials.token,
                headers=None if endpoint.credentials is None else endpoint.credentials.headers,
            )
    gone = [copy for key, copy in own.items() if key not in wanted]
    for copy in gone:
        copy_remove(copy=copy, by_deployment=True)
    _record_departures(
        deployment, [copy.url for copy in gone], [endpoint.url for endpoint in wanted.values()]
    )
    return bool(gone)


def drain_time() -> timedelta:
    """Return the time from a route's end until the removal of what it led to.

    Gateways learn of the end within a second; the rest is for running requests.
    """
    return timedelta(seconds=settings.GRAFTWORK.deployment_drain_seconds)


def drained_endpoints(deployment: Deployment) -> dict[str, float]:
    """Return URLs that left the routes so long ago that no new request arrives.

    Returns:
        URL -> seconds since that moment.
    """
    now = timezone.now()
    return {
        url: (now - _time(at)).total_seconds() for url, at in deployment.leaving.items() if _time(at) <= now
    }


def routed_urls(deployment: Deployment) -> frozenset[str]:
    """Return URLs of all copies of the base model, and of endpoints that recently left the routes."""
    there = Copy.objects.filter(base_model=deployment.base_model_id).values_list("url", flat=True)
    return frozenset({*there, *deployment.leaving})


def is_draining(deployment: Deployment) -> bool:
    """Return True if an endpoint left the routes within the drain time."""
    return any(_time(at) > timezone.now() for at in deployment.leaving.values())


def _is_routable(endpoint: Endpoint, copy: Copy | None) -> bool:
    """Return True if gateways may use the endpoint; records since when it has been silent."""
    if copy is None:
        return not endpoint.silent and endpoint.credentials is not None
    now = timezone.now()
    since = (copy.silent_since or now) if endpoint.silent else None
    if since != copy.silent_since:
        Copy.objects.filter(pk=copy.pk).update(silent_since=since)
    return since is None or now - since < PATIENCE


def _record_departures(deployment: Deployment, gone: list[str], routed_urls: list[str]) -> None:
    now = timezone.now()
    row = Deployment.objects.select_for_update().get(pk=deployment.pk)
    leaving = {
        url: at for url, at in row.leaving.items() if url not in routed_urls and _time(at) > now - _REMEMBERED
    }
    leaving |= {url: (now + drain_time()).isoformat() for url in gone}
    if leaving != row.leaving:
        Deployment.objects.filter(pk=deployment.pk).update(leaving=leaving)
        deployment.leaving = leaving


def _time(text: str) -> Any:
    return parse_datetime(text)


def _key(endpoint: Endpoint) -> tuple[str, ...]:
    target = endpoint.sagemaker
    return (endpoint.url, *((target.region, target.endpoint, target.component) if target else ("", "", "")))


def _copy_key(copy: Copy) -> tuple[str, ...]:
    return (copy.url, copy.region, copy.endpoint, copy.component)


def _copy_settings(copy: Copy) -> tuple[Any, ...]:
    loaded = None if copy.loaded is None else tuple(copy.loaded)
    form = (copy.adapter_naming, copy.api, copy.container, loaded)
    sagemaker = form if copy.kind == Copy.Kind.SAGEMAKER else None
    return copy.kind, copy.loads_adapters, sagemaker, (copy.canary, copy.percent), _credentials(copy)


def _credentials(copy: Copy) -> ServerCredentials | None:
    """Return the copy's credentials; None if they cannot be opened, so that an endpoint's replace them."""
    try:
        return copy.credentials
    except UnsealError:
        return None


def _endpoint_settings(endpoint: Endpoint, known: Copy | None) -> tuple[Any, ...]:
    target, credentials = endpoint.sagemaker, endpoint.credentials
    if credentials is None and known is not None:
        credentials = _credentials(known)
    form = (target.adapters, target.api, target.container, target.loaded) if target else None
    return endpoint.kind, endpoint.loads_adapters, form, _share_of(endpoint), credentials


def _engine(copy: Copy) -> RunningEngine:
    return RunningEngine(copy.engine, copy.engine_version, copy.max_rank)


def _share_of(endpoint: Endpoint) -> tuple[str, int]:
    return ("", 0) if endpoint.share is None else (endpoint.share.name, endpoint.share.percent)
