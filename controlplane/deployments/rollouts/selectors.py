"""Queries for deployments' rollouts."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.deployments.models import Deployment, DeploymentRollout
from controlplane.errors import NotFoundError


def deployment_rollout_list(*, deployment: Deployment) -> QuerySet[DeploymentRollout]:
    """Return a deployment's rollouts, newest first."""
    return DeploymentRollout.objects.filter(deployment=deployment).order_by("-pk")


def deployment_rollout_get(*, deployment: Deployment, number: int) -> DeploymentRollout:
    """Return a deployment's rollout by its number. Raises NotFoundError."""
    found = deployment_rollout_list(deployment=deployment).filter(pk=number).first()
    if found is None:
        raise NotFoundError(f"deployment {deployment.name} has no rollout {number}")
    return found


def deployment_rollout_active(*, deployment: Deployment) -> DeploymentRollout | None:
    """Return the active rollout; None without one."""
    rows = deployment_rollout_list(deployment=deployment)
    return rows.filter(status__in=DeploymentRollout.ACTIVE).first()
