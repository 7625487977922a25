"""Queries for scaling policies."""

from __future__ import annotations

import datetime as dt

from controlplane.deployments.models import Deployment, Scaling
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.errors import NotFoundError


def scaling_of(deployment: Deployment) -> Scaling | None:
    """Return the deployment's current row, even if its policy is off; None without a row."""
    return Scaling.objects.filter(deployment_id=deployment.pk).first()


def policy_of(deployment: Deployment, row: Scaling | None = None) -> ScalingPolicy | None:
    """Return the policy within the deployment's bounds; None without one."""
    row = row or scaling_of(deployment)
    if row is None or row.policy is None:
        return None
    bounds = {"min_copies": deployment.min_copies, "max_copies": deployment.max_copies}
    return ScalingPolicy.stored(row.policy, **bounds)


def policy_get(*, deployment: Deployment) -> ScalingPolicy:
    """Return the policy. Raises NotFoundError."""
    policy = policy_of(deployment)
    if policy is None:
        raise NotFoundError(f"deployment {deployment.name} has no scaling policy: create one with PUT")
    return policy


def hold_seconds(*, base_model_id: int) -> int:
    """Return how long gateways may hold a request for a base model that has no copy.

    It is the longest hold time of the deployments that scale to zero; 0 without such a deployment.
    """
    rows = Deployment.objects.filter(
        base_model_id=base_model_id,
        merged_adapter="",
        removal_asked_at=None,
        removed_at=None,
        scaling__policy__isnull=False,
    ).select_related("scaling")
    policies = (policy_of(row, row.scaling) for row in rows)
    return max((policy.hold_seconds for policy in policies if policy and policy.least == 0), default=0)


def policies_on_endpoint(deployment: Deployment) -> list[tuple[Deployment, ScalingPolicy]]:
    """Return other deployments' policies on the same endpoint; their endpoint settings agree."""
    if not deployment.endpoint:
        return []
    rows = Deployment.objects.filter(
        target_id=deployment.target_id,
        endpoint=deployment.endpoint,
        removal_asked_at=None,
        removed_at=None,
        scaling__policy__isnull=False,
    ).exclude(pk=deployment.pk)
    found = ((row, policy_of(row, row.scaling)) for row in rows.select_related("scaling").order_by("pk"))
    return [(row, policy) for row, policy in found if policy is not None]


def endpoint_policy(deployment: Deployment) -> ScalingPolicy | None:
    """Return the policy for the endpoint's routing and release of instances.

    It is the deployment's own, or else another's on the same endpoint, so that neither undoes the other.
    """
    others = (policy for _, policy in policies_on_endpoint(deployment))
    return policy_of(deployment) or next(others, None)


def copies_in_force(deployment: Deployment, row: Scaling | None, now: dt.datetime) -> tuple[int, int]:
    """Return the (minimum, maximum) copies that a provisioner must keep at `now`.

    For a local target with a policy the minimum is the number that the controller wants.
    """
    policy = policy_of(deployment, row)
    if policy is None or row is None:
        return deployment.min_copies, deployment.max_copies
    least, most = policy.bounds(now)
    if deployment.target.kind != deployment.target.Kind.LOCAL:
        return least, most
    wanted = min(max(row.copies, least), most)
    return wanted, most
