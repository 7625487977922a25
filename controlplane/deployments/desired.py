"""Build the desired state that a provisioner gets from a deployment's rows."""

from __future__ import annotations

from typing import Final

from django.utils import timezone

from controlplane.deployments.copies.endpoints import drained_endpoints, routed_urls
from controlplane.deployments.models import Deployment
from controlplane.deployments.placement.placements import placements_desired
from controlplane.deployments.provisioners.base import Desired
from controlplane.deployments.rollouts.stages import with_stage
from controlplane.deployments.rollouts.states import copies_state, state_values
from controlplane.deployments.scaling.selectors import copies_in_force, endpoint_policy, policy_of, scaling_of

_UPDATES: Final = ("update_inference_component", "update_endpoint")
_OPERATOR_STEPS: Final = ("create", "update", "retry", "rollout.start", "rollout.take_back")
"""Steps of operators, after which earlier failed updates may be tried again."""


def desired_of(deployment: Deployment) -> Desired:
    """Return the deployment's complete desired state at this moment.

    Raises:
        ProvisioningError: the deployment's variant is no longer in the catalogue.
    """
    now, base = timezone.now(), deployment.base_model
    adapters, keep = placements_desired(deployment)
    scaling = scaling_of(deployment)
    least, most = copies_in_force(deployment, scaling, now)
    desired = Desired(
        deployment=deployment.name,
        base_model=base.name,
        served_name=base.served_name,
        hosting=deployment.hosting,
        min_copies=least,
        max_copies=most,
        adapters=adapters,
        keep=keep,
        drained=drained_endpoints(deployment),
        routed=routed_urls(deployment),
        endpoint=deployment.endpoint,
        endpoint_is_shared=endpoint_is_shared(deployment),
        instance_type=deployment.instance_type,
        fallback_instance_types=tuple(deployment.fallback_instance_types),
        min_instances=deployment.min_instances,
        max_instances=deployment.max_instances,
        retry=deployment.retry_at is not None and deployment.retry_at <= now,
        tried=_tried(deployment),
        scaled=scaling is not None,
        scaling=policy_of(deployment, scaling) if deployment.is_wanted else None,
        endpoint_scaling=endpoint_policy(deployment) if deployment.is_wanted else None,
        **copies_state(deployment, state_values(deployment), strict=deployment.is_wanted),
    )
    return with_stage(deployment, desired) if deployment.is_wanted else desired


def endpoint_is_shared(deployment: Deployment) -> bool:
    """Return True if another deployment that is not removed uses the same endpoint."""
    others = Deployment.objects.filter(target_id=deployment.target_id, endpoint=deployment.endpoint)
    return bool(deployment.endpoint) and others.filter(removed_at=None).exclude(pk=deployment.pk).exists()


def _tried(deployment: Deployment) -> frozenset[str]:
    """Return the cause of each resource's newest update since an operator's last step.

    Older updates of a resource succeeded, so they may become necessary again.
    """
    last_step = (
        deployment.steps.filter(action__in=_OPERATOR_STEPS)
        .order_by("-pk")
        .values_list("pk", flat=True)
        .first()
    )
    updates = deployment.steps.filter(action__in=_UPDATES, pk__gt=last_step or 0).order_by("-pk")
    newest: dict[str, str] = {}
    for resource, cause in updates.values_list("resource", "cause")[:100]:
        newest.setdefault(resource, cause)
    return frozenset(newest.values())
