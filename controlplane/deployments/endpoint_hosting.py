"""Checks of deployments in hosting endpoint: one instance per copy, and no inference components.

The model is the endpoint's production variant. SageMaker demands that for draft models that it provides.
"""

from __future__ import annotations

from typing import Final

from controlplane.deployments.models import Deployment
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.errors import InvalidInputError

_UNUSED: Final = {
    "min_instances": "each copy has an instance of its own: set min_copies",
    "max_instances": "each copy has an instance of its own: set max_copies",
    "endpoint": "the endpoint serves one model alone: omit it, or choose hosting components",
}


def endpoint_hosting_check(deployment: Deployment) -> None:
    """Check the fields that hosting endpoint does not have. Raises InvalidInputError by the field's name."""
    for field, remedy in _UNUSED.items():
        if getattr(deployment, field) != getattr(Deployment(), field):
            raise InvalidInputError(f"{field} has no effect in hosting endpoint: {remedy}", field=field)
    if set(deployment.compute) - {"concurrency"} and not deployment.has_computed_requirements:
        text = "compute has no effect in hosting endpoint, where a copy has its whole instance: omit it"
        raise InvalidInputError(text, field="compute")
    if deployment.min_copies < 1:
        text = "min_copies must be at least 1 in hosting endpoint, whose endpoints have no scale to zero"
        raise InvalidInputError(text, field="min_copies")


def endpoint_policy_check(policy: ScalingPolicy) -> None:
    """Check a scaling policy for hosting endpoint. Raises InvalidInputError by the field's name."""
    default = ScalingPolicy(policy.min_copies, policy.max_copies, policy.target)
    if policy.least < 1:
        text = "min_copies must be at least 1 in hosting endpoint, whose endpoints have no scale to zero"
        raise InvalidInputError(text, field="min_copies")
    for field in ("from_zero", "release", "release_cooldown_minutes"):
        if getattr(policy, field) != getattr(default, field):
            text = f"{field} has no effect in hosting endpoint, which has one instance per copy: omit it"
            raise InvalidInputError(text, field=field)
