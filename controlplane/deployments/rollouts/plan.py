"""Numbers of new and routed copies at each step of a rollout. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.deployments.models import DeploymentRollout, Target
from controlplane.deployments.rollouts.policy import RolloutPolicy

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
            return PlanStep(total, 0, f"{total} new copies come beside the others", waits=False)
        case Strategy.BLUE_GREEN if step == 1:
            return _switched(total)
        case Strategy.CANARY if step < len(policy.shares) + 3:
            return _canary(step, policy, total)
    return PlanStep(total, total, f"all {total} copies are new", is_last=True, waits=False)


def _canary(step: int, policy: RolloutPolicy, total: int) -> PlanStep:
    """Return a canary's step: a few new copies get growing shares of callers; then as blue/green."""
    few, shares = min(policy.batch_copies, total), policy.shares
    if step == 0:
        return PlanStep(few, 0, f"{few} new copies come beside the others", keep_old=True, waits=False)
    if step <= len(shares):
        percent = shares[step - 1]
        return PlanStep(
            few, few, f"{few} new copies get {percent} % of callers", keep_old=True, percent=percent
        )
    if step == len(shares) + 1:
        name = f"all {total} new copies come; {few} of them get {shares[-1]} % of callers"
        return PlanStep(total, few, name, keep_old=True, percent=shares[-1], waits=False)
    return _switched(total)


def _switched(total: int) -> PlanStep:
    return PlanStep(total, total, "the new copies have the requests, the others stand by", keep_old=True)
