"""Add the active rollout to the desired state that a provisioner gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import Desired, Share, Turn
from controlplane.deployments.rollouts.models import DeploymentRollout
from controlplane.deployments.rollouts.plan import stage_of
from controlplane.deployments.rollouts.policy import RolloutPolicy
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.states import copies_state

Status = DeploymentRollout.Status


def with_turn(deployment: Deployment, desired: Desired) -> Desired:
    """Return `desired` with the active rollout towards it, or back to it."""
    rollout = deployment_rollout_active(deployment=deployment)
    had = rollout is not None or deployment.rollouts.exists()
    if rollout is None:
        return replace(desired, had_turns=had)
    back = rollout.status == Status.ROLLING_BACK
    other: Mapping[str, Any] = rollout.after if back else rollout.before
    before = replace(desired, **copies_state(deployment.base_model, other))
    kind, total = deployment.target.kind, copies_wanted(deployment, desired)
    policy = policy_of(rollout, kind)
    turn = Turn(
        before,
        fresh=total,
        led=total,
        back=back,
        began=rollout.turned_at.timestamp(),
        config=policy.deployment_config(),
    )
    if not back:
        stage = stage_of(rollout, policy, kind=kind, total=total)
        share = Share(f"rollout-{rollout.pk}", stage.percent) if stage.percent else None
        turn = replace(
            turn, fresh=stage.fresh, led=stage.led, spare=stage.spare, share=share,
            hold=rollout.status == Status.PAUSED, thresholds=policy.thresholds,
        )  # fmt: skip
    return replace(desired, turn=turn, had_turns=had)


def copies_wanted(deployment: Deployment, desired: Desired) -> int:
    """Return the total number of copies, or of servers."""
    if deployment.target.kind == Target.Kind.OPENAI_HTTP:
        return len(desired.urls or deployment.target.urls)
    return desired.min_copies


def policy_of(rollout: DeploymentRollout, kind: str) -> RolloutPolicy:
    """Return the rollout's policy with defaults filled in."""
    return RolloutPolicy.of(rollout.policy, kind=kind)
