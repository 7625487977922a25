"""Automatic decisions of a rollout: each reconciliation advances it, rolls it back, or ends it.

The reconciler calls this module while it holds the deployment's lease. Pause, resume and abort first lock the
deployment's row, as this module does, so the second of two simultaneous actions sees the first.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.deployments.journal import step_add
from controlplane.deployments.models import Copy, Deployment, DeploymentRollout, DeploymentStep, Target
from controlplane.deployments.provisioners.base import Desired, Observation, ProvisioningError
from controlplane.deployments.rollouts.ends import rollout_end, rollout_take_back
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.stages import PlanStep, copies_wanted, plan_step, policy_of

Status = DeploymentRollout.Status
Outcome = DeploymentStep.Outcome


def rollout_decide(
    *, deployment: Deployment, desired: Desired, seen: Observation, renew: Callable[[], None]
) -> bool:
    """Decide by an observation; return True if the desired state or the step has changed.

    Args:
        renew: renews the lease in the decision's transaction. Raises LeaseLostError.
    """
    if desired.stage is None:
        return False
    with transaction.atomic():
        renew()
        rollout = deployment_rollout_active(deployment=deployment)
        if rollout is None or (rollout.status == Status.ROLLING_BACK) != desired.stage.rolling_back:
            return True  # an operator changed it first
        if rollout.status == Status.ROLLING_BACK:
            if seen.complete:
                rollout_end(rollout=rollout, reason=rollout.reason)
            return seen.complete
        _record_copies(rollout, deployment, seen)
        if rollout.status == Status.PAUSED:
            return False
        return _decide(rollout, deployment, desired, seen)


def rollout_summary(*, deployment: Deployment) -> str:
    """Return the rollout's status as one line; "" if it has just ended."""
    rollout = deployment_rollout_active(deployment=deployment)
    return "" if rollout is None else f"rollout {rollout.pk} is {rollout.status}: {rollout.reason}"


def rollout_refused(*, deployment: Deployment, error: ProvisioningError, renew: Callable[[], None]) -> bool:
    """Roll back after a permanent refusal of the target; return True if it did."""
    if error.transient:
        return False
    with transaction.atomic():
        renew()
        rollout = deployment_rollout_active(deployment=deployment)
        if rollout is None or rollout.status == Status.ROLLING_BACK:
            return False
        rollout_take_back(rollout=rollout, reason=str(error))
        return True


def _decide(rollout: DeploymentRollout, deployment: Deployment, desired: Desired, seen: Observation) -> bool:
    kind, now = deployment.target.kind, timezone.now()
    policy = policy_of(rollout, kind)
    step = plan_step(rollout, policy, kind=kind, total=copies_wanted(deployment, desired))
    if trouble := _trouble(rollout, seen, limit=timedelta(seconds=policy.max_seconds), kind=kind):
        rollout_take_back(rollout=rollout, reason=trouble)
        return True
    if kind == Target.Kind.SAGEMAKER:
        if seen.complete:
            rollout_end(rollout=rollout, reason="all copies are new")
        return seen.complete
    if seen.progress.ready_copies < step.target_copies:
        _wait(
            rollout, f"{step.name}: {seen.progress.ready_copies} of {step.target_copies} answer", ready=False
        )
        return False
    if rollout.ready_at is None:
        rollout.ready_at = now
        step_add(deployment, "rollout.ready", str(rollout.pk), step.name, Outcome.NOTED)
    wait = _waits_for(rollout, step, policy.wait_seconds, judged=policy.is_judged)
    if wait:
        _wait(rollout, f"{step.name}; {wait}", ready=True)
        return False
    if not step.is_last:
        return _advance(rollout, deployment, step, policy_total=copies_wanted(deployment, desired))
    if not seen.complete:
        _wait(rollout, f"{step.name}; the others are finishing their last requests", ready=True)
        return False
    rollout_end(rollout=rollout, reason=step.name)
    return True


def _advance(
    rollout: DeploymentRollout, deployment: Deployment, step: PlanStep, *, policy_total: int
) -> bool:
    why = f"{step.name}, without objections"
    rollout.step += 1
    rollout.ready_at, rollout.verdict, rollout.judged_at = None, "", None
    kind = deployment.target.kind
    following = plan_step(rollout, policy_of(rollout, kind), kind=kind, total=policy_total)
    rollout.reason = following.name
    rollout.save(update_fields=["step", "ready_at", "verdict", "judged_at", "reason"])
    step_add(deployment, "rollout.step", str(rollout.pk), f"{following.name}: {why}")
    return True


def _trouble(rollout: DeploymentRollout, seen: Observation, *, limit: timedelta, kind: str) -> str:
    """Return why the rollout must not continue; "" without a reason.

    An alarm at SageMaker appears as a rollback by SageMaker itself.
    """
    if seen.progress.rolled_back:
        return seen.progress.rolled_back
    if seen.progress.failed:
        return seen.progress.failed
    if rollout.verdict == "worse":
        return rollout.reason
    if kind != Target.Kind.SAGEMAKER and timezone.now() - rollout.turned_at > limit:
        return f"the rollout did not end within {limit.total_seconds():.0f} s: {rollout.reason}"
    return ""


def _waits_for(rollout: DeploymentRollout, step: PlanStep, seconds: float, *, judged: bool) -> str:
    """Return what must happen before the next step; "" for nothing."""
    if not step.waits or rollout.ready_at is None:
        return ""
    due = rollout.ready_at + timedelta(seconds=seconds)
    if (left := due - timezone.now()) > timedelta(0):
        return f"alarms and usage are watched for {int(left.total_seconds()) + 1} s more"
    if judged and (rollout.judged_at is None or rollout.judged_at < due):
        return "usage of this step is being judged"
    return ""


def _wait(rollout: DeploymentRollout, reason: str, *, ready: bool) -> None:
    if not ready:
        rollout.ready_at = None
    rollout.reason = reason
    rollout.save(update_fields=["ready_at", "reason"])


def _record_copies(rollout: DeploymentRollout, deployment: Deployment, seen: Observation) -> None:
    """Record which copies served each side; usage is judged by them even after they left the routes."""
    sides = {side: set(ids) for side, ids in rollout.copies.items()}
    for copy in Copy.objects.filter(deployment=deployment):
        # A new copy that is too busy to answer is missing from `routed_urls`.
        new = copy.url in seen.progress.routed_urls or copy.canary or copy.pk in sides.get("new", ())
        sides.setdefault("new" if new else "old", set()).add(copy.pk)
    recorded = {side: sorted(ids) for side, ids in sides.items()}
    if recorded != rollout.copies:
        rollout.copies = recorded
        rollout.save(update_fields=["copies"])
