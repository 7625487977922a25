"""Select the provisioner for a deployment by its target's kind."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import Desired, Provisioner


def provisioner_of(target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Provisioner:
    """Return the provisioner for a deployment in `target`; each kind's libraries load on first use.

    Args:
        heartbeat: called during long calls, to renew the lease.

    Raises:
        ProvisioningError: the provisioner cannot start.
    """
    match Target.Kind(target.kind):
        case Target.Kind.SAGEMAKER:
            from controlplane.deployments.provisioners.sagemaker import (
                EndpointProvisioner,
                SageMakerProvisioner,
            )

            if desired.hosting == Deployment.Hosting.ENDPOINT:
                return EndpointProvisioner.from_target(target, desired, heartbeat=heartbeat)
            return SageMakerProvisioner.from_target(target, desired, heartbeat=heartbeat)
        case Target.Kind.LOCAL:
            from controlplane.deployments.provisioners.local.provisioner import LocalProvisioner

            return LocalProvisioner.from_target(target, desired, heartbeat=heartbeat)
        case Target.Kind.OPENAI_HTTP:
            from controlplane.deployments.provisioners.openai_http import OpenAIHttpProvisioner

            return OpenAIHttpProvisioner.from_target(target, desired, heartbeat=heartbeat)
