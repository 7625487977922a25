"""Instance types on which an engine cannot serve a base model."""

from __future__ import annotations

from contracts.capabilities.worker import SPARSE
from controlplane.deployments.models import Deployment
from controlplane.deployments.sizing.instances import INSTANCES
from controlplane.errors import InvalidInputError


def device_check(deployment: Deployment, *, engine: str) -> None:
    """Refuse the bundled worker with experts on accelerators, where it would not start.

    Raises:
        InvalidInputError: names the instance type.
    """
    architecture = deployment.base_model.architecture
    if engine != "worker" or architecture not in SPARSE:
        return
    fields = {"instance_type": [deployment.instance_type]}
    fields["fallback_instance_types"] = list(deployment.fallback_instance_types)
    for field, names in fields.items():
        for name in names:
            instance = INSTANCES.get(str(name))
            if instance is not None and instance.accelerators:
                raise InvalidInputError(
                    f"the bundled worker serves {architecture} on the CPU only, and {instance.name} has "
                    f"{instance.accelerator}s: choose an instance type without, or an image with vLLM",
                    field=field,
                )
