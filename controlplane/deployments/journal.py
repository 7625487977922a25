"""The journal of a deployment: what was done, by whom, and why."""

from __future__ import annotations

from typing import Final

from controlplane.deployments.models import Deployment, DeploymentStep
from controlplane.platform.audit.origin import current_origin

MAX_STEPS: Final = 2000
"""Number of steps kept per deployment."""
_PRUNE_EVERY: Final = 200


def actor_name() -> str:
    """Return the current actor's display name."""
    actor = current_origin().who()
    return (actor.name or actor.id or actor.kind)[:200]


def step_add(
    deployment: Deployment,
    action: str,
    resource: str = "",
    cause: str = "",
    outcome: str = DeploymentStep.Outcome.DONE,
    *,
    seconds: float | None = None,
) -> None:
    """Add a step to the journal, with its time and actor."""
    step = DeploymentStep.objects.create(
        deployment=deployment,
        action=action[:60],
        resource=resource[:200],
        cause=cause,
        outcome=outcome,
        actor=actor_name(),
        seconds=seconds,
    )
    if step.pk % _PRUNE_EVERY == 0:
        old = DeploymentStep.objects.filter(deployment=deployment).order_by("-pk")[MAX_STEPS:].values("pk")
        DeploymentStep.objects.filter(pk__in=list(old.values_list("pk", flat=True))).delete()
