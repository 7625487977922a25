"""Steps of a rollout, and the stage that the active rollout adds to the desired state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.provisioners.base import Desired, RolloutStage, Share
from controlplane.deployments.rollouts.policy import RolloutPolicy
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.states import copies_state

Status = DeploymentRollout.Status
Strategy = DeploymentRollout.Strategy


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a rollout.

    Attributes:
        target_copies, routed_copies, keep_old: as in `provisioners.base.RolloutStage`.
        percent: exact share of callers for the routed new copies; 0: requests follow load.
        is_last: the rollout ends after this step.
        waits: before the next step the policy's wait time passes, and usage is judged.
        name: description for operators.
    """

    target_copies: int
    routed_copies: int
    name: str
    keep_old: bool = False
    percent: int = 0
    is_last: bool = False
    waits: bool = True


def plan_step(rollout: DeploymentRollout, policy: RolloutPolicy, *, kind: str, total: int) -> PlanStep:
    """Return the current step of `rollout` among `total` copies of a target of this kind."""
    step = rollout.step
    if kind == Target.Kind.SAGEMAKER:
        return PlanStep(total, total, "SageMaker replaces the copies", is_last=True)
    match Strategy(rollout.strategy):
        case Strategy.ROLLING:
            new = min((step + 1) * policy.batch_copies, total)
            return PlanStep(new, new, f"{new} of {total} copies are new", is_last=new >= total)
        case Strategy.BLUE_GREEN if step == 0:
            return PlanStep(total, 0, f"{total} new copies are starting beside the others", waits=False)
        case Strategy.BLUE_GREEN if step == 1:
            return _switched(total)
        case Strategy.CANARY if step < len(policy.shares) + 3:
            return _canary_step(step, policy, total)
    return PlanStep(total, total, f"all {total} copies are new", is_last=True, waits=False)


def _canary_step(step: int, policy: RolloutPolicy, total: int) -> PlanStep:
    """Return a canary's step: a few new copies get growing shares of callers; then as blue/green."""
    few, shares = min(policy.batch_copies, total), policy.shares
    if step == 0:
        return PlanStep(
            few, 0, f"{few} new copies are starting beside the others", keep_old=True, waits=False
        )
    if step <= len(shares):
        percent = shares[step - 1]
        return PlanStep(
            few, few, f"{few} new copies get {percent} % of callers", keep_old=True, percent=percent
        )
    if step == len(shares) + 1:
        name = f"all {total} new copies are starting; {few} of them get {shares[-1]} % of callers"
        return PlanStep(total, few, name, keep_old=True, percent=shares[-1], waits=False)
    return _switched(total)


def _switched(total: int) -> PlanStep:
    return PlanStep(total, total, "the new copies get the requests, the others stand by", keep_old=True)


def with_stage(deployment: Deployment, desired: Desired) -> Desired:
    """Return `desired` with the active rollout towards it, or back to it."""
    rollout = deployment_rollout_active(deployment=deployment)
    had = rollout is not None or deployment.rollouts.exists()
    if rollout is None:
        return replace(desired, had_rollouts=had)
    rolling_back = rollout.status == Status.ROLLING_BACK
    other: Mapping[str, Any] = rollout.after if rolling_back else rollout.before
    before = replace(desired, **copies_state(deployment, other))
    kind, total = deployment.target.kind, copies_wanted(deployment, desired)
    policy = policy_of(rollout, kind)
    stage = RolloutStage(
        before,
        target_copies=total,
        routed_copies=total,
        rolling_back=rolling_back,
        started_at=rollout.turned_at.timestamp(),
        config=policy.deployment_config(),
    )
    if not rolling_back:
        step = plan_step(rollout, policy, kind=kind, total=total)
        share = Share(f"rollout-{rollout.pk}", step.percent) if step.percent else None
        stage = replace(
            stage,
            target_copies=step.target_copies,
            routed_copies=step.routed_copies,
            keep_old=step.keep_old,
            share=share,
            paused=rollout.status == Status.PAUSED,
            thresholds=policy.thresholds,
        )
    return replace(desired, stage=stage, had_rollouts=had)


def copies_wanted(deployment: Deployment, desired: Desired) -> int:
    """Return the total number of copies, or of servers."""
    if deployment.target.kind == Target.Kind.OPENAI_HTTP:
        return len(desired.urls or deployment.target.urls)
    return desired.min_copies


def policy_of(rollout: DeploymentRollout, kind: str) -> RolloutPolicy:
    """Return the rollout's policy with defaults filled in."""
    return RolloutPolicy.from_json(rollout.policy, kind=kind)
