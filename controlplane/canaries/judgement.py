"""Judges deployments' rollouts by usage, as canaries of adapters: errors, and time to first token.

New copies are compared with the old ones in the same time. SageMaker does not distinguish copies, so there
the time since the update began is compared with the hour before.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import Final

from controlplane.canaries.statistics import Arm, Bounds, Verdict, judge
from controlplane.deployments.models import DeploymentRollout, Target
from controlplane.deployments.rollouts.services import deployment_rollout_judged
from controlplane.deployments.rollouts.stages import policy_of
from controlplane.errors import ControlPlaneError
from controlplane.metering.selectors import copy_attempts, latencies_ms

logger = logging.getLogger(__name__)
_MAX_LATENCIES: Final = 5000
_MIN_REQUESTS: Final = 50
"""Least answers of the old copies for a comparison of latency."""
_HOUR: Final = dt.timedelta(hours=1)
_NO_BOUND: Final = 1.0
"""An increase of the error share that cannot be exceeded."""


def deployment_rollouts_judge() -> int:
    """Judge every running rollout; return how many were judged. A failing rollout does not stop others."""
    count = 0
    rows = DeploymentRollout.objects.filter(status=DeploymentRollout.Status.RUNNING).order_by("pk")
    for rollout in rows.select_related("deployment__target"):
        try:
            count += deployment_rollout_judge(rollout=rollout) is not None
        except ControlPlaneError:
            logger.exception("%s could not be judged", rollout)
    return count


def deployment_rollout_judge(*, rollout: DeploymentRollout) -> Verdict | None:
    """Judge the current step by usage; None if the policy has no bounds, or no new copy serves yet."""
    policy = policy_of(rollout, rollout.deployment.target.kind)
    sides = _sides(rollout)
    if not policy.is_judged or sides is None:
        return None
    bounds = Bounds(_MIN_REQUESTS, policy.max_error_increase or _NO_BOUND, policy.max_latency_ratio)
    verdict = judge(*sides, bounds)
    deployment_rollout_judged(
        rollout=rollout, verdict=verdict.outcome, reason=verdict.reason, figures=verdict.figures
    )
    return verdict


def _sides(rollout: DeploymentRollout) -> tuple[Arm, Arm] | None:
    """Return (old copies, new copies) as arms with versions 0 and 1; None if no new copy serves yet."""
    new, old = rollout.copies.get("new", []), rollout.copies.get("old", [])
    if rollout.deployment.target.kind == Target.Kind.SAGEMAKER:
        began = rollout.turned_at
        return _arm(0, old, began - _HOUR, began), _arm(1, old, began, None)
    if not new or rollout.ready_at is None:
        return None
    # New copies count this step's requests; old ones also the hour before, since they get fewer. In a canary
    # both sides get random callers, so there both count the same time.
    since = rollout.ready_at if rollout.is_tried_on_a_share else rollout.turned_at - _HOUR
    return _arm(0, old, since, None), _arm(1, new, rollout.ready_at, None)


def _arm(version: int, copies: list[str], since: dt.datetime, until: dt.datetime | None) -> Arm:
    attempts = copy_attempts(copies=copies, since=since, until=until)
    answered = attempts.filter(status="ok")
    latencies = latencies_ms(answered, most=_MAX_LATENCIES)
    # Cancelled requests and gateway shutdowns say nothing about a copy.
    errors, ok = attempts.filter(status="error").count(), answered.count()
    return Arm(version, ok + errors, errors, latencies)
