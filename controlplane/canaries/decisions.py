"""Automatic decisions of rollouts: a Celery task judges each running rollout every few seconds."""

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
    """Judge every running rollout; return the number of decisions. A failing rollout does not stop others."""
    made = 0
    for rollout in rollouts_running():
        try:
            made += rollout_decide(rollout=rollout) is not None
        except ControlPlaneError:
            logger.exception("rollout %s could not decide", rollout)
    return made


def rollout_decide(*, rollout: Rollout) -> str | None:
    """Advance, promote or roll back by the figures; return the decision's kind, or None for waiting.

    Figures are read without locks. The decision is applied only if the rollout is unchanged since, so one of
    two concurrent calls acts.
    """
    bounds = Bounds(rollout.min_requests, rollout.max_error_increase, rollout.max_latency_ratio)
    verdict = judge(*rollout_arms(rollout=rollout), bounds)
    elapsed = timezone.now() - rollout.step_started_at
    remaining = timedelta(seconds=rollout.hold_seconds) - elapsed
    if verdict.outcome == "fine" and remaining > timedelta(0):
        seconds = int(remaining.total_seconds()) + 1
        verdict = Verdict("wait", f"{verdict.reason}; this step holds {seconds} s more", verdict.figures)
    with transaction.atomic():
        return _act(rollout, verdict)


def _act(read: Rollout, verdict: Verdict) -> str | None:
    try:
        # Every change of an alias or a rollout takes this lock.
        adapter_locked(read.adapter)
    except NotFoundError:
        return None  # the adapter is deleted: the rollout resumes once it is restored
    unmoved = Rollout.objects.filter(
        pk=read.pk, status=Status.RUNNING, step=read.step, step_started_at=read.step_started_at
    )
    rows = unmoved.select_for_update(of=("self",)).select_related("adapter", "stable", "canary")
    if (rollout := rows.first()) is None:
        return None
    common: dict[str, Any] = {"rollout": rollout, "figures": verdict.figures}
    if is_superseded(rollout):
        reason = "the alias was changed by hand, so this has ended"
        rollout_end(**common, status=Status.SUPERSEDED, kind=Kind.SUPERSEDE, reason=reason)
        return str(Kind.SUPERSEDE)
    if verdict.outcome == "wait":
        rollout_note(**common, reason=verdict.reason)
        return None
    if verdict.outcome == "worse":
        rollout_end(**common, status=Status.ROLLED_BACK, kind=Kind.ROLL_BACK, reason=verdict.reason)
        return str(Kind.ROLL_BACK)
    if rollout.step + 1 < len(rollout.steps):
        rollout_advance(**common, reason=verdict.reason)
        return str(Kind.ADVANCE)
    rollout_end(**common, status=Status.PROMOTED, kind=Kind.PROMOTE, reason=verdict.reason)
    return str(Kind.PROMOTE)
