"""Synchronize a deployment's adapter placements with the route table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import AdapterRef
from contracts.capabilities.capability import BaseNeeds
from contracts.route_table import AdapterRoute
from controlplane.deployments.capabilities import RunningEngine, base_needs
from controlplane.deployments.copies.endpoints import drain_time
from controlplane.deployments.models import AdapterRule, Deployment, Placement
from controlplane.deployments.provisioners.base import PlacedAdapter, State
from controlplane.routes.selectors import route_adapters_of, route_version

KNOWN_AFTER: Final = timedelta(seconds=2)
"""Gateways learn of a change within a second. Running requests hold their adapter themselves. A request that
reaches a copy without its adapter loads it again, which costs only time."""
_STATUS: Final[Mapping[State, Placement.Status]] = {
    State.ABSENT: Placement.Status.WAITING,
    State.STARTING: Placement.Status.LOADING,
    State.READY: Placement.Status.READY,
    State.CHANGING: Placement.Status.LOADING,
    State.FAILED: Placement.Status.FAILED,
    State.LEAVING: Placement.Status.LEAVING,
}


def adapters_wanted(*, base_model: str, scope: str) -> dict[str, AdapterRef]:
    """Return the routed adapter versions of `base_model` within a scope, by engine name."""
    found: dict[str, AdapterRef] = {}
    for route in route_adapters_of(base_model=base_model):
        numbers = _named(route) if scope == Deployment.Scope.NAMED else set(route.versions)
        refs = (route.versions[number] for number in numbers if number in route.versions)
        found |= {ref.name: ref for ref in refs}
    return found


@transaction.atomic
def placements_sync(*, deployment: Deployment) -> int:
    """Add placements for adapters that are new in the routes, and schedule departed ones for removal.

    Returns:
        the version of the routes that the placements reflect.
    """
    version = route_version() or 0
    if version == deployment.routes_version:
        return version
    wanted: dict[str, AdapterRef] = {}
    if deployment.hosting in Deployment.PLACING and deployment.is_wanted:
        wanted = adapters_wanted(base_model=deployment.base_model.name, scope=deployment.adapter_scope)
        engine, base = _engine_and_base(deployment)
        wanted = {name: ref for name, ref in wanted.items() if not engine.problem(base, ref)}
    known = {row.engine_name: row for row in deployment.placements.all()}
    Placement.objects.bulk_create(
        Placement(deployment=deployment, engine_name=name, uri=ref.uri, sha256=ref.sha256, rank=ref.rank)
        for name, ref in wanted.items()
        if name not in known
    )
    rows = deployment.placements
    returned = [name for name, row in known.items() if name in wanted and row.leaves_at]
    rows.filter(engine_name__in=returned).update(leaves_at=None)
    departed = [name for name, row in known.items() if name not in wanted and row.leaves_at is None]
    rows.filter(engine_name__in=departed).update(leaves_at=timezone.now() + drain_time())
    # Keep the version at 0 if a concurrent change of the deployment has reset it.
    unchanged = Deployment.objects.filter(pk=deployment.pk, generation=deployment.generation)
    unchanged.update(routes_version=version)
    return version


def unserved_adapters(deployment: Deployment) -> str:
    """Return how many routed adapters the deployment's engine cannot serve, and why; "" for none."""
    if deployment.merged_adapter:
        return ""
    engine, base = _engine_and_base(deployment)
    refs = adapters_wanted(base_model=deployment.base_model.name, scope=Deployment.Scope.ALL)
    problems = {name: text for name, ref in refs.items() if (text := engine.problem(base, ref))}
    if not problems:
        return ""
    name, text = next(iter(sorted(problems.items())))
    return f"{len(problems)} of {len(refs)} adapter versions are not served here; the first, {name}: {text}"


def _engine_and_base(deployment: Deployment) -> tuple[RunningEngine, BaseNeeds]:
    base = base_needs(deployment.base_model, deployment.variant)
    return RunningEngine.of_deployment(deployment), base


def leaves_at(now: datetime) -> datetime:
    """Return when an adapter that leaves the routes now may be dropped."""
    return now + KNOWN_AFTER


def placements_desired(deployment: Deployment) -> tuple[tuple[AdapterRef, ...], frozenset[str]]:
    """Return the adapters to place, and the names of others whose last requests may still run."""
    rows, now = list(deployment.placements.all()), timezone.now()
    routed = (row for row in rows if row.leaves_at is None)
    refs = tuple(AdapterRef(row.engine_name, row.uri, row.sha256, row.rank) for row in routed)
    return refs, frozenset(row.engine_name for row in rows if row.leaves_at and row.leaves_at > now)


def placements_failure(deployment: Deployment) -> str:
    """Return how many placements failed, and the first reason; "" if none failed."""
    rows = list(deployment.placements.filter(status=Placement.Status.FAILED))
    if not rows:
        return ""
    return f"{len(rows)} adapters failed; the first, {rows[0].engine_name}: {rows[0].reason}"


def placements_transition(deployment: Deployment) -> str:
    """Return how many adapters are coming and leaving; "" for none."""
    count = Counter(deployment.placements.values_list("status", flat=True))
    coming, leaving = count["waiting"] + count["loading"], count["leaving"]
    parts = [f"{coming} adapters are being placed"] if coming else []
    return ", ".join([*parts, *([f"{leaving} are leaving"] if leaving else [])])


def placements_are_leaving(deployment: Deployment) -> bool:
    """Return True if an adapter without a route is not removed yet."""
    return deployment.placements.exclude(leaves_at=None).exists()


def placements_remove(deployment: Deployment) -> None:
    """Delete the placements and the operators' rules of a removed deployment."""
    deployment.placements.all().delete()
    AdapterRule.objects.filter(deployment=deployment).delete()


@transaction.atomic
def placements_settle(*, deployment: Deployment, seen: Mapping[str, PlacedAdapter]) -> None:
    """Store each adapter's observed status; delete placements that have left."""
    now, changed = timezone.now(), []
    for row in deployment.placements.all():
        found = seen.get(row.engine_name, PlacedAdapter("", State.ABSENT))
        if row.leaves_at and row.leaves_at <= now and found.state is State.ABSENT:
            row.delete()
            continue
        status = Placement.Status.LEAVING if row.leaves_at else _STATUS[found.state]
        resource, reason = found.resource or row.resource, found.reason
        if (row.status, row.resource, row.reason) != (status, resource, reason):
            row.status, row.resource, row.reason = status, resource, reason
            changed.append(row)
    Placement.objects.bulk_update(changed, ["status", "resource", "reason"], batch_size=200)


def _named(route: AdapterRoute) -> set[int]:
    """Return the versions that the bare name, an alias or an arm of a split refers to."""
    arms = {number for split in route.splits.values() for number, _ in split}
    return {route.default, *route.aliases.values(), *arms}
