"""Writes scale-ups down: opened when more copies are asked for, closed when they serve, with their phases.

Of workers on a host the phases are put together from three clocks that agree, being one machine's: the
controller's decision, the reconciler's step that started the process, and the worker's own account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
from django.utils import timezone

from controlplane.deployments.models import Copy, Deployment
from controlplane.deployments.phases.models import ScaleUp
from controlplane.deployments.phases.prediction import of_startup
from controlplane.deployments.provisioners.base import Scaled
from controlplane.http.tls import tls_context

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
        cause=cause, began_at=min(began, decided), decided_at=decided,
    )  # fmt: skip


def scale_ups_observe(*, deployment: Deployment, scaled: Sequence[Scaled]) -> None:
    """Closes what has come about, as of this look.

    Args:
        scaled: what the target's own autoscaler has done.
    """
    for row in open_ones(deployment):
        copies = list(Copy.objects.filter(deployment=deployment).order_by("created_at"))
        if len(copies) >= row.copies_after:
            _close(row, copies[-1], _phases(row, copies[row.copies_before :]))
        elif timezone.now() - row.decided_at > _LONGEST:
            row.outcome, row.ended_at = ScaleUp.Outcome.OVERTAKEN, timezone.now()
            row.save(update_fields=["outcome", "ended_at"])
    for item in scaled:
        _observed(deployment, item)


def scale_ups_overtake(*, deployment: Deployment, at: datetime) -> None:
    """Ends what still goes on: another number of copies is wanted now, more or fewer."""
    open_ones(deployment).update(outcome=ScaleUp.Outcome.OVERTAKEN, ended_at=at)


def open_ones(deployment: Deployment) -> Any:
    """Those that go on."""
    return ScaleUp.objects.filter(deployment=deployment, ended_at=None)


def _close(row: ScaleUp, last: Copy, phases: Mapping[str, float]) -> None:
    row.phases, row.outcome = dict(phases), ScaleUp.Outcome.DONE
    row.ended_at = max(last.created_at, row.decided_at)
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


def _observed(deployment: Deployment, item: Scaled) -> None:
    phases = {"detect": item.detect}
    if item.ended is not None:
        phases["copy"] = _seconds(item.ended - item.decided)
    outcome = ScaleUp.Outcome.DONE if item.ended else ""
    row, is_new = ScaleUp.objects.get_or_create(
        deployment=deployment,
        event=item.event,
        defaults={
            "copies_before": item.before, "copies_after": item.after, "cause": item.cause,
            "began_at": item.decided - timedelta(seconds=item.detect), "decided_at": item.decided,
            "ended_at": item.ended, "phases": phases,
            "outcome": outcome,
        },
    )  # fmt: skip
    if is_new:
        _prune(deployment.pk)
    elif row.ended_at is None and item.ended is not None:
        row.ended_at, row.phases, row.outcome = item.ended, phases, outcome
        row.save(update_fields=["ended_at", "phases", "outcome"])


def _seconds(span: timedelta) -> float:
    return round(max(0.0, span.total_seconds()), 3)
