"""Enqueue deployments that are due: by their time, or because their adapters changed in the routes."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db.models import Q
from django.utils import timezone

from controlplane.deployments.models import Deployment
from controlplane.platform.queue import enqueue
from controlplane.routes.selectors import route_adapters_changed, route_version

RECONCILE_TASK: Final = "deployments.reconcile"
EXPIRES_S: Final = 10.0
"""Seconds that a message may wait. Later sweeps send new ones, so an unread queue does not grow."""
HISTORY: Final = timedelta(days=30)
"""How long the steps of a removed deployment are kept."""


def deployments_sweep() -> int:
    """Enqueue due deployments without an active lease; return their number."""
    _notice_routes()
    now = timezone.now()
    free = Q(lease_owner="") | Q(lease_until=None) | Q(lease_until__lte=now)
    due = Deployment.objects.filter(free, next_at__lte=now, removed_at=None)
    found = list(due.order_by("next_at").values_list("pk", flat=True)[:200])
    for deployment_id in found:
        enqueue(RECONCILE_TASK, expires=EXPIRES_S, deployment_id=deployment_id)
    Deployment.objects.filter(removed_at__lt=now - HISTORY).delete()
    return len(found)


def _notice_routes() -> None:
    """Make deployments due whose adapters changed in the routes."""
    version = route_version() or 0
    behind = Deployment.objects.filter(removal_asked_at=None, hosting__in=Deployment.PLACING)
    rows = behind.exclude(routes_version=version).values_list("pk", "routes_version", "base_model__name")
    for pk, seen, base_model in rows:
        if route_adapters_changed(base_model=base_model, after=seen):
            now = timezone.now()
            Deployment.objects.filter(pk=pk, next_at__gt=now).update(next_at=now)
        else:
            Deployment.objects.filter(pk=pk, routes_version=seen).update(routes_version=version)
