"""Who makes what a deployment wants: one provisioner for each kind of target."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import Desired, Provisioner


def provisioner_of(target: Target, desired: Desired, *, beat: Callable[[], None]) -> Provisioner:
    """The provisioner for a deployment in `target`; each kind's libraries are loaded when it is first needed.

    Args:
        beat: called while a long call goes on.

    Raises:
        ProvisioningError: it cannot even begin.
    """
    match Target.Kind(target.kind):
        case Target.Kind.SAGEMAKER:
            from controlplane.deployments.provisioners.sagemaker import SageMakerProvisioner

            return SageMakerProvisioner.of(target, desired, beat=beat)
        case Target.Kind.LOCAL:
            from controlplane.deployments.provisioners.local import LocalProvisioner

            return LocalProvisioner.of(target, desired, beat=beat)
        case Target.Kind.OPENAI_HTTP:
            from controlplane.deployments.provisioners.openai_http import OpenAIHttpProvisioner

            return OpenAIHttpProvisioner.of(target, desired, beat=beat)
