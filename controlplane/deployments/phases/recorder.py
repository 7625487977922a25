"""Record scale-ups: opened when more copies are requested, closed with their phases when these serve.

For workers on a host the phases combine three sources on the same machine's clock: the controller's decision,
the reconciler's step that started the process, and the worker's own report. On SageMaker the observed number
of instances separates them (`phases.machines`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import httpx
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.deployments.models import Copy, Deployment, ScaleUp, Target
from controlplane.deployments.phases.machines import (
    growth_phases,
    machines_before,
    machines_observed,
    machines_record,
)
from controlplane.deployments.phases.prediction import of_startup
from controlplane.deployments.provisioners.base import Observation, ScalingActivity
from controlplane.platform.http.tls import tls_context

_ANSWER_SECONDS: Final = 1.0
_LONGEST: Final = timedelta(hours=1)
"""A scale-up that has not ended by then never ends."""
KEPT: Final = 200


def scale_up_begin(
    *, deployment: Deployment, before: int, after: int, cause: str, began: datetime, decided: datetime
) -> ScaleUp:
    """Record that more copies were requested; the deployment's open scale-ups become overtaken."""
    scale_ups_overtake(deployment=deployment, at=decided)
    return ScaleUp.objects.create(
        deployment=deployment,
        event=decided.isoformat(),
        copies_before=before,
        copies_after=after,
        cause=cause,
        began_at=min(began, decided),
        decided_at=decided,
        image=deployment.image,
        machines=machines_before(deployment, decided=decided, instances=machines_observed(deployment)),
    )


def scale_ups_observe(*, deployment: Deployment, seen: Observation) -> None:
    """Open scale-ups of the target's autoscaler and close finished ones, by an observation."""
    for item in seen.scaling_activities:
        _open_activity(deployment, item, seen)
    activities = {item.event: item for item in seen.scaling_activities}
    for row in open_scale_ups(deployment):
        if deployment.target.kind == Target.Kind.SAGEMAKER:
            _close_sagemaker(row, activities.get(row.event), seen)
        else:
            _close_local(row, deployment)
        if row.ended_at is None and timezone.now() - row.decided_at > _LONGEST:
            row.outcome, row.ended_at = ScaleUp.Outcome.OVERTAKEN, timezone.now()
            row.save(update_fields=["outcome", "ended_at"])


def _close_local(row: ScaleUp, deployment: Deployment) -> None:
    """Close a host deployment's scale-up once the routes have enough copies, one row each."""
    copies = list(Copy.objects.filter(deployment=deployment).order_by("created_at"))
    if len(copies) >= row.copies_after:
        _close(row, copies[-1].created_at, _phases(row, copies[row.copies_before :]))


def _close_sagemaker(row: ScaleUp, activity: ScalingActivity | None, seen: Observation) -> None:
    """Close a SageMaker scale-up, whose copies share one row in the routes.

    It ends when the autoscaler says so or, if an operator requested it, when enough copies run.
    """
    now = timezone.now()
    machines_record(row, instances=seen.instances, at=now)
    if activity is not None:
        ended = activity.ended
    else:
        ended = now if seen.running is not None and seen.running >= row.copies_after else None
    if ended is not None:
        _close(row, ended, growth_phases(row, ended=ended))


def scale_ups_overtake(*, deployment: Deployment, at: datetime) -> None:
    """End open scale-ups as overtaken, since another number of copies is wanted now."""
    open_scale_ups(deployment).update(outcome=ScaleUp.Outcome.OVERTAKEN, ended_at=at)


def open_scale_ups(deployment: Deployment) -> QuerySet[ScaleUp]:
    """Return the scale-ups in progress."""
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
    """Return the phases of the newest copy, since the scale-up ends with it."""
    found = {"detect": _seconds(row.decided_at - row.began_at)}
    steps = row.deployment.steps.filter(action="start_worker", at__gte=row.decided_at).order_by("at")
    started = steps.values_list("at", flat=True).last()
    startup = _startup(fresh[-1].url) if fresh else {}
    served = fresh[-1].created_at if fresh else row.decided_at
    if not startup:
        return found | {"copy": _seconds(served - row.decided_at)}
    if started is None:
        # No process was started: one that was draining was put back into the routes.
        return found | {"traffic": _seconds(served - row.decided_at)}
    own = of_startup(startup) | {"traffic": 0.0}
    found |= {"provision": _seconds(started - row.decided_at)} | own
    running = _seconds(served - started)
    # The step is recorded after the process started, so the process may be slightly older.
    return found | {"traffic": max(0.0, running - sum(own.values()))}


def _startup(url: str) -> dict[str, float]:
    """Return the phases that the worker reports; {} if it reports none."""
    try:
        answer = httpx.get(f"{url}/health", timeout=_ANSWER_SECONDS, trust_env=False, verify=tls_context())
        seconds = answer.json()["startup"]["seconds"]
        return {str(name): float(value) for name, value in seconds.items()}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _open_activity(deployment: Deployment, item: ScalingActivity, seen: Observation) -> None:
    """Record an activity of the autoscaler once, by its id."""
    ScaleUp.objects.get_or_create(
        deployment=deployment,
        event=item.event,
        defaults={
            "copies_before": item.before,
            "copies_after": item.after,
            "cause": item.cause,
            "began_at": item.decided - timedelta(seconds=item.detect),
            "decided_at": item.decided,
            "phases": {"detect": item.detect},
            "image": deployment.image,
            "machines": machines_before(deployment, decided=item.decided, instances=seen.instances),
        },
    )


def _seconds(span: timedelta) -> float:
    return round(max(0.0, span.total_seconds()), 3)
