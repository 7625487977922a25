"""Numbers of new and routed copies at each step of a rollout. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.deployments.models import Target
from controlplane.deployments.rollouts.models import DeploymentRollout
from controlplane.deployments.rollouts.policy import RolloutPolicy

Strategy = DeploymentRollout.Strategy


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a rollout.

    Attributes:
        fresh, led, spare: as in `provisioners.base.Turn`.
        percent: exact share of callers for the routed new copies; 0: requests follow load.
        is_last: the rollout ends after this step.
        waits: before the next step the policy's wait time passes, and usage is judged.
        name: description for operators.
    """

    fresh: int
    led: int
    name: str
    spare: bool = False
    percent: int = 0
    is_last: bool = False
    waits: bool = True


def stage_of(rollout: DeploymentRollout, policy: RolloutPolicy, *, kind: str, total: int) -> Stage:
    """Return the current step of `rollout` among `total` copies of a target of this kind."""
    step = rollout.step
    if kind == Target.Kind.SAGEMAKER:
        return Stage(total, total, "SageMaker replaces the copies", is_last=True)
    match Strategy(rollout.strategy):
        case Strategy.ROLLING:
            fresh = min((step + 1) * policy.batch_copies, total)
            return Stage(fresh, fresh, f"{fresh} of {total} copies are new", is_last=fresh >= total)
        case Strategy.BLUE_GREEN if step == 0:
            return Stage(total, 0, f"{total} new copies come beside the others", waits=False)
        case Strategy.BLUE_GREEN if step == 1:
            return _switched(total)
        case Strategy.CANARY if step < len(policy.shares) + 3:
            return _canary(step, policy, total)
    return Stage(total, total, f"all {total} copies are new", is_last=True, waits=False)


def _canary(step: int, policy: RolloutPolicy, total: int) -> Stage:
    """Return a canary's step: a few new copies get growing shares of callers; then as blue/green."""
    few, shares = min(policy.batch_copies, total), policy.shares
    if step == 0:
        return Stage(few, 0, f"{few} new copies come beside the others", spare=True, waits=False)
    if step <= len(shares):
        percent = shares[step - 1]
        return Stage(few, few, f"{few} new copies get {percent} % of callers", spare=True, percent=percent)
    if step == len(shares) + 1:
        name = f"all {total} new copies come; {few} of them get {shares[-1]} % of callers"
        return Stage(total, few, name, spare=True, percent=shares[-1], waits=False)
    return _switched(total)


def _switched(total: int) -> Stage:
    return Stage(total, total, "the new copies have the requests, the others stand by", spare=True)
