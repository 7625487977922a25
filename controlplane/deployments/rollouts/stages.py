"""Add the active rollout to the desired state that a provisioner gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.provisioners.base import Desired, RolloutStage, Share
from controlplane.deployments.rollouts.plan import plan_step
from controlplane.deployments.rollouts.policy import RolloutPolicy
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.states import copies_state

Status = DeploymentRollout.Status


def with_stage(deployment: Deployment, desired: Desired) -> Desired:
    """Return `desired` with the active rollout towards it, or back to it."""
    rollout = deployment_rollout_active(deployment=deployment)
    had = rollout is not None or deployment.rollouts.exists()
    if rollout is None:
        return replace(desired, had_rollouts=had)
    rolling_back = rollout.status == Status.ROLLING_BACK
    other: Mapping[str, Any] = rollout.after if rolling_back else rollout.before
    before = replace(desired, **copies_state(deployment.base_model, other))
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
            stage, target_copies=step.target_copies, routed_copies=step.routed_copies,
            keep_old=step.keep_old, share=share, paused=rollout.status == Status.PAUSED,
            thresholds=policy.thresholds,
        )  # fmt: skip
    return replace(desired, stage=stage, had_rollouts=had)


def copies_wanted(deployment: Deployment, desired: Desired) -> int:
    """Return the total number of copies, or of servers."""
    if deployment.target.kind == Target.Kind.OPENAI_HTTP:
        return len(desired.urls or deployment.target.urls)
    return desired.min_copies


def policy_of(rollout: DeploymentRollout, kind: str) -> RolloutPolicy:
    """Return the rollout's policy with defaults filled in."""
    return RolloutPolicy.of(rollout.policy, kind=kind)
