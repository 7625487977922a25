"""What rollouts decide by themselves: each running one is looked at every few seconds by a Celery task."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.adapters.services import adapter_locked
from controlplane.canaries.models import Rollout, RolloutDecision
from controlplane.canaries.selectors import rollout_arms, rollouts_running
from controlplane.canaries.services import is_superseded, rollout_advance, rollout_end, rollout_note
from controlplane.canaries.statistics import Bounds, Verdict, judge
from controlplane.errors import ControlPlaneError, NotFoundError

logger = logging.getLogger(__name__)
Kind = RolloutDecision.Kind
Status = Rollout.Status


def rollouts_decide() -> int:
    """Looks at every running rollout; how many decisions were made. One that fails holds up no other."""
    made = 0
    for rollout in rollouts_running():
        try:
            made += rollout_decide(rollout=rollout) is not None
        except ControlPlaneError:
            logger.exception("rollout %s could not decide", rollout)
    return made


def rollout_decide(*, rollout: Rollout) -> str | None:
    """Advances, promotes or rolls back when the figures say so; the decision's kind, None for waiting.

    Figures are read before any lock. The decision then holds only if the rollout still stands where it was
    read, so of two deciders at once one acts.
    """
    bounds = Bounds(rollout.min_requests, rollout.max_error_increase, rollout.max_latency_ratio)
    verdict = judge(*rollout_arms(rollout=rollout), bounds)
    held = timezone.now() - rollout.step_started_at
    left = timedelta(seconds=rollout.hold_seconds) - held
    if verdict.outcome == "fine" and left > timedelta(0):
        seconds = int(left.total_seconds()) + 1
        verdict = Verdict("wait", f"{verdict.reason}; this step holds {seconds} s more", verdict.figures)
    with transaction.atomic():
        return _act(rollout, verdict)


def _act(seen: Rollout, verdict: Verdict) -> str | None:
    try:
        # Whoever changes an alias, or a rollout, holds this lock.
        adapter_locked(seen.adapter)
    except NotFoundError:
        return None  # deleted: it goes on once the adapter is restored
    unmoved = Rollout.objects.filter(
        pk=seen.pk, status=Status.RUNNING, step=seen.step, step_started_at=seen.step_started_at
    )
    rows = unmoved.select_for_update(of=("self",)).select_related("adapter", "stable", "canary")
    if (rollout := rows.first()) is None:
        return None
    told: dict[str, Any] = {"rollout": rollout, "figures": verdict.figures}
    if is_superseded(rollout):
        reason = "the alias was changed by hand, so this has ended"
        rollout_end(**told, status=Status.SUPERSEDED, kind=Kind.SUPERSEDE, reason=reason)
        return str(Kind.SUPERSEDE)
    if verdict.outcome == "wait":
        rollout_note(**told, reason=verdict.reason)
        return None
    if verdict.outcome == "worse":
        rollout_end(**told, status=Status.ROLLED_BACK, kind=Kind.ROLL_BACK, reason=verdict.reason)
        return str(Kind.ROLL_BACK)
    if rollout.step + 1 < len(rollout.steps):
        rollout_advance(**told, reason=verdict.reason)
        return str(Kind.ADVANCE)
    rollout_end(**told, status=Status.PROMOTED, kind=Kind.PROMOTE, reason=verdict.reason)
    return str(Kind.PROMOTE)
