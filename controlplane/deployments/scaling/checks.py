"""Check a scaling policy against its deployment's target."""

from __future__ import annotations

from typing import Final

from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.deployments.scaling.selectors import policies_on_endpoint
from controlplane.errors import ConflictError, InvalidInputError

_IN_AFTER_OF_AWS, _OUT_AFTER_OF_AWS = 900, 30
_MOST_LOCAL: Final = 16
_OF_ENDPOINT: Final = ("routing", "release", "release_cooldown_minutes")
"""Fields that concern the endpoint, not one base model's copies."""


def policy_check(row: Deployment, policy: ScalingPolicy) -> None:
    """Check that the deployment's target supports the policy.

    Raises:
        InvalidInputError: a value is not valid for this kind of target.
        ConflictError: other deployments on the shared endpoint have other settings.
    """
    if row.target.kind == Target.Kind.OPENAI_HTTP:
        raise InvalidInputError("servers that run already are scaled by whoever runs them", field="target")
    if row.target.kind == Target.Kind.SAGEMAKER:
        _check_sagemaker(row, policy)
        return
    most = max(policy.max_copies, *(item.max_copies for item in policy.schedule), 1)
    if most > _MOST_LOCAL:
        raise InvalidInputError(f"at most {_MOST_LOCAL} copies on one host", field="max_copies")
    if policy.release is not None:
        raise InvalidInputError("instances are released in targets of kind sagemaker", field="release")


def _check_sagemaker(row: Deployment, policy: ScalingPolicy) -> None:
    for field, own in (("in_after", _IN_AFTER_OF_AWS), ("out_after", _OUT_AFTER_OF_AWS)):
        if getattr(policy, field) != own:
            text = f"{field} is {own} s in targets of kind sagemaker: AWS makes its alarms itself"
            raise InvalidInputError(text, field=field)
    for other, theirs in policies_on_endpoint(row):
        for field in _OF_ENDPOINT:
            if getattr(theirs, field) != getattr(policy, field):
                raise ConflictError(
                    f"endpoint {row.endpoint} is shared with {other.name}, whose {field} is "
                    f"{getattr(theirs, field)}: it has to be the same"
                )
