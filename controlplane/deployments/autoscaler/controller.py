"""Scale local deployments: once a second read the load, decide, and notify the reconciler."""

from __future__ import annotations

import datetime as dt
import logging
import socket
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Value
from django.db.models.functions import Least
from django.utils import timezone

from controlplane.deployments.autoscaler.decision import ScaleState, decide
from controlplane.deployments.autoscaler.load import copies_load, demand, reading
from controlplane.deployments.journal import step_add
from controlplane.deployments.models import Copy, Deployment, Scaling, Target
from controlplane.deployments.phases.recorder import scale_up_begin, scale_ups_overtake
from controlplane.deployments.scaling.selectors import policy_of
from controlplane.deployments.scheduling import RECONCILE_TASK
from controlplane.platform.queue import enqueue

logger = logging.getLogger(__name__)
Status = Deployment.Status

INTERVAL: Final = dt.timedelta(seconds=0.8)
"""Minimum time between two readings of one deployment, across all processes."""
LEASE: Final = dt.timedelta(seconds=20)
"""Longer than any reading takes: sixteen hanging copies, eight at a time, and Redis."""


def scale_all() -> int:
    """Evaluate this host's local deployments that have a policy and are due; return their number."""
    rows = Scaling.objects.filter(
        _due(timezone.now()),
        policy__isnull=False,
        deployment__removal_asked_at=None,
        deployment__removed_at=None,
        deployment__target__kind=Target.Kind.LOCAL,
        deployment__target__host=socket.gethostname(),
    ).values_list("pk", flat=True)
    return sum(_scale_safely(pk) for pk in rows)


def scale(*, scaling_id: int, now: dt.datetime) -> bool:
    """Take one reading and decide; False if another process does so now, or has just done so."""
    until = now + LEASE
    if not Scaling.objects.filter(_due(now), pk=scaling_id).update(evaluated_at=now, lease_until=until):
        return False
    try:
        return _scale(scaling_id, now, until)
    finally:
        Scaling.objects.filter(pk=scaling_id, lease_until=until).update(lease_until=None)


def _due(now: dt.datetime) -> Q:
    """Filter for rows that were not read just now, and that no other process is reading."""
    free = Q(lease_until=None) | Q(lease_until__lte=now)
    return free & (Q(evaluated_at=None) | Q(evaluated_at__lte=now - INTERVAL))


def _scale_safely(scaling_id: int) -> bool:
    """Evaluate one deployment; log its errors, so that they do not stop other deployments."""
    try:
        return scale(scaling_id=scaling_id, now=timezone.now())
    except Exception:
        logger.exception("scaling %d: not looked at", scaling_id)
        return False


def _scale(scaling_id: int, now: dt.datetime, until: dt.datetime) -> bool:
    row = Scaling.objects.select_related("deployment__target", "deployment__base_model").get(pk=scaling_id)
    policy = policy_of(row.deployment, row)
    if policy is None:
        return False
    window: dict[str, Any] = row.state.get("window", {})
    urls = list(Copy.objects.filter(deployment=row.deployment_id).values_list("url", flat=True))
    loads = copies_load(urls, fleet_token=settings.GRAFTWORK.fleet_token)
    waiting = demand(settings.GRAFTWORK.redis_url, base_model=row.deployment.base_model.name)
    seen = reading(policy.metric, loads, waiting.held, asked=urls, window=window, at=now.timestamp())
    before = ScaleState.from_json(row.state, copies=row.copies)
    state, cause = decide(policy, before, seen, now)
    stored = state.to_json() | ({"window": window} if window else {})
    last_reading = {"load": seen.load, "held": seen.held, "whole": seen.whole}
    with transaction.atomic():
        # Lock the deployment first, as policy changes do: the opposite order could deadlock.
        Deployment.objects.select_for_update().get(pk=row.deployment_id)
        # A policy or count that was changed meanwhile takes precedence.
        unchanged = Scaling.objects.filter(pk=row.pk, lease_until=until, policy=row.policy, copies=row.copies)
        if not unchanged.update(state=stored, seen=last_reading, copies=state.copies):
            return True
        if cause:
            _record_change(row, before, state, cause, since=waiting.since, now=now)
        # Reconcile early also while copies start, to shorten the wait for the first one. A failed deployment
        # keeps its own time.
        starts = Q() if cause else Q(status__in=(Status.PENDING, Status.WORKING, Status.SERVING), failures=0)
        if cause or state.copies > len(urls):
            deployments = Deployment.objects.filter(starts, pk=row.deployment_id)
            if deployments.update(next_at=Least("next_at", Value(now))):
                late = INTERVAL.total_seconds() * 2
                enqueue(RECONCILE_TASK, expires=late, deployment_id=row.deployment_id)
    return True


def _record_change(
    row: Scaling, before: ScaleState, state: ScaleState, cause: str, *, since: float | None, now: dt.datetime
) -> None:
    step_add(row.deployment, "scale", f"{before.copies} -> {state.copies}", cause)
    if state.copies < before.copies:
        scale_ups_overtake(deployment=row.deployment, at=now)
    if state.copies > before.copies:
        sign = since if before.copies == 0 else before.high_since
        began = dt.datetime.fromtimestamp(sign, dt.UTC) if sign else now
        scale_up_begin(
            deployment=row.deployment,
            before=before.copies,
            after=state.copies,
            cause=cause,
            began=began,
            decided=now,
        )
