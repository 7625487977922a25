"""Writes scale-ups down: opened when more copies are asked for, closed when they serve, with their phases.

Of workers on a host the phases are put together from three clocks that agree, being one machine's: the
controller's decision, the reconciler's step that started the process, and the worker's own account. At
SageMaker they are told apart by looks (`phases.machines`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import httpx
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.deployments.phases.machines import (
    growth_phases,
    machines_first,
    machines_seen,
    machines_told,
)
from controlplane.deployments.phases.models import ScaleUp
from controlplane.deployments.phases.prediction import of_startup
from controlplane.deployments.provisioners.base import Observation, Scaled
from controlplane.platform.http.tls import tls_context

_ANSWER_SECONDS: Final = 1.0
_LONGEST: Final = timedelta(hours=1)
"""One that has not ended by then never does."""
KEPT: Final = 200


def scale_up_begin(
    *, deployment: Deployment, before: int, after: int, cause: str, began: datetime, decided: datetime
) -> ScaleUp:
    """More copies were asked for; one that still went on is overtaken by it."""
    scale_ups_overtake(deployment=deployment, at=decided)
    return ScaleUp.objects.create(
        deployment=deployment, event=decided.isoformat(), copies_before=before, copies_after=after,
        cause=cause, began_at=min(began, decided), decided_at=decided, image=deployment.image,
        machines=machines_first(deployment, decided=decided, instances=machines_told(deployment)),
    )  # fmt: skip


def scale_ups_observe(*, deployment: Deployment, seen: Observation) -> None:
    """Opens what the target's own autoscaler has begun, and closes what has come about, as of this look."""
    for item in seen.scaled:
        _opened(deployment, item, seen)
    told = {item.event: item for item in seen.scaled}
    for row in open_ones(deployment):
        if deployment.target.kind == Target.Kind.SAGEMAKER:
            _followed(row, told.get(row.event), seen)
        else:
            _counted(row, deployment)
        if row.ended_at is None and timezone.now() - row.decided_at > _LONGEST:
            row.outcome, row.ended_at = ScaleUp.Outcome.OVERTAKEN, timezone.now()
            row.save(update_fields=["outcome", "ended_at"])


def _counted(row: ScaleUp, deployment: Deployment) -> None:
    """On a host each copy is a row of its own in the routes."""
    copies = list(Copy.objects.filter(deployment=deployment).order_by("created_at"))
    if len(copies) >= row.copies_after:
        _close(row, copies[-1].created_at, _phases(row, copies[row.copies_before :]))


def _followed(row: ScaleUp, activity: Scaled | None, seen: Observation) -> None:
    """At SageMaker one row stands for all copies: it is told when the autoscaler says so, or, where somebody
    asked by hand, when as many run."""
    now = timezone.now()
    machines_seen(row, instances=seen.instances, at=now)
    if activity is not None:
        ended = activity.ended
    else:
        ended = now if seen.running is not None and seen.running >= row.copies_after else None
    if ended is not None:
        _close(row, ended, growth_phases(row, ended=ended))


def scale_ups_overtake(*, deployment: Deployment, at: datetime) -> None:
    """Ends what still goes on: another number of copies is wanted now, more or fewer."""
    open_ones(deployment).update(outcome=ScaleUp.Outcome.OVERTAKEN, ended_at=at)


def open_ones(deployment: Deployment) -> QuerySet[ScaleUp]:
    """Those that go on."""
    return ScaleUp.objects.filter(deployment=deployment, ended_at=None)


def _close(row: ScaleUp, ended: datetime, phases: Mapping[str, float]) -> None:
    row.phases, row.outcome = dict(phases), ScaleUp.Outcome.DONE
    row.ended_at = max(ended, row.decided_at)
    row.save(update_fields=["phases", "outcome", "ended_at"])
    _prune(row.deployment_id)


def _prune(deployment_id: int) -> None:
    old = ScaleUp.objects.filter(deployment=deployment_id).order_by("-pk")[KEPT:].values("pk")
    ScaleUp.objects.filter(pk__in=list(old.values_list("pk", flat=True))).delete()


def _phases(row: ScaleUp, fresh: Sequence[Copy]) -> dict[str, float]:
    """Of the copy that came last, since all have to be there."""
    found = {"detect": _seconds(row.decided_at - row.began_at)}
    steps = row.deployment.steps.filter(action="start_worker", at__gte=row.decided_at).order_by("at")
    started = steps.values_list("at", flat=True).last()
    told = _startup(fresh[-1].url) if fresh else {}
    served = fresh[-1].created_at if fresh else row.decided_at
    if not told:
        return found | {"copy": _seconds(served - row.decided_at)}
    if started is None:
        # It was still there, ending its last requests, and was taken back.
        return found | {"traffic": _seconds(served - row.decided_at)}
    own = of_startup(told) | {"traffic": 0.0}
    found |= {"provision": _seconds(started - row.decided_at)} | own
    running = _seconds(served - started)
    # The step is written once the process runs, so that its start may lie a moment before.
    return found | {"traffic": max(0.0, running - sum(own.values()))}


def _startup(url: str) -> dict[str, float]:
    """The worker's phases, by its own word; none where it does not tell."""
    try:
        answer = httpx.get(f"{url}/health", timeout=_ANSWER_SECONDS, trust_env=False, verify=tls_context())
        told = answer.json()["startup"]["seconds"]
        return {str(name): float(value) for name, value in told.items()}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _opened(deployment: Deployment, item: Scaled, seen: Observation) -> None:
    """Written down once, by its name at the autoscaler; it ends as any other."""
    ScaleUp.objects.get_or_create(
        deployment=deployment,
        event=item.event,
        defaults={
            "copies_before": item.before, "copies_after": item.after, "cause": item.cause,
            "began_at": item.decided - timedelta(seconds=item.detect), "decided_at": item.decided,
            "phases": {"detect": item.detect}, "image": deployment.image,
            "machines": machines_first(deployment, decided=item.decided, instances=seen.instances),
        },
    )  # fmt: skip


def _seconds(span: timedelta) -> float:
    return round(max(0.0, span.total_seconds()), 3)
