"""Build the desired state that a provisioner gets from a deployment's rows."""

from __future__ import annotations

from typing import Final

from django.db.models import Sum
from django.utils import timezone

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.containers.images import DEFAULT_IMAGE, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import Desired
from controlplane.deployments.rollouts.states import copies_state, state_values
from controlplane.deployments.rollouts.turns import with_turn
from controlplane.deployments.scaling.selectors import copies_in_force, endpoint_policy, policy_of, scaling_of
from controlplane.deployments.served import drained, routed
from controlplane.deployments.sizing import Load, Requirements, Shape, requirements
from controlplane.errors import InvalidInputError

_UPDATES: Final = ("update_inference_component", "update_endpoint")
_OPERATOR_STEPS: Final = ("create", "update", "retry", "rollout.start", "rollout.take_back")
"""Steps of operators, after which earlier failed updates may be tried again."""


def desired_of(deployment: Deployment) -> Desired:
    """Return the deployment's complete desired state at this moment.

    Raises:
        ProvisioningError: the deployment's variant is no longer in the catalogue.
    """
    now, base = timezone.now(), deployment.base_model
    rows = list(deployment.placements.all())
    scaling = scaling_of(deployment)
    least, most = copies_in_force(deployment, scaling, now)
    desired = Desired(
        deployment=deployment.name,
        base_model=base.name,
        served_name=base.served_name,
        hosting=deployment.hosting,
        min_copies=least,
        max_copies=most,
        adapters=tuple(
            AdapterRef(row.engine_name, row.uri, row.sha256, row.rank)
            for row in rows
            if row.leaves_at is None
        ),
        keep=frozenset(row.engine_name for row in rows if row.leaves_at and row.leaves_at > now),
        drained=drained(deployment),
        routed=routed(deployment),
        endpoint=deployment.endpoint,
        instance_type=deployment.instance_type,
        min_instances=deployment.min_instances,
        max_instances=deployment.max_instances,
        endpoint_is_shared=endpoint_is_shared(deployment),
        retry=deployment.retry_at is not None and deployment.retry_at <= now,
        tried=_tried(deployment),
        scaling=policy_of(deployment, scaling) if deployment.is_wanted else None,
        scaled=scaling is not None,
        endpoint_scaling=endpoint_policy(deployment) if deployment.is_wanted else None,
        **copies_state(base, state_values(deployment), strict=deployment.is_wanted),
    )
    return with_turn(deployment, desired) if deployment.is_wanted else desired


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


def requirements_of(deployment: Deployment) -> Requirements:
    """Return the compute requirements of one copy, by the checkpoint's shapes and the options.

    Raises:
        InvalidInputError: the instance type is unknown, or a copy does not fit; the message says what would.
    """
    image = Image.of(deployment.image or DEFAULT_IMAGE, family=deployment.image_family)
    fused = deployment.hosting == Deployment.Hosting.FUSED
    options = LmiOptions.of(deployment.options, image, fused=fused)
    return requirements(_shape(deployment), deployment.instance_type, _load(deployment, options))


def _shape(deployment: Deployment) -> Shape:
    base = deployment.base_model
    weights = base.files.filter(name__endswith=".safetensors").aggregate(total=Sum("size"))["total"]
    try:
        return Shape.of(
            base.modules, dtype=base.dtype, max_model_len=base.max_model_len, file_bytes=weights or 0
        )
    except InvalidInputError as error:
        text = f"{error}: give compute requirements by hand"
        raise InvalidInputError(text, field="compute") from error


def _load(deployment: Deployment, options: LmiOptions) -> Load:
    serves_adapters = deployment.hosting != Deployment.Hosting.FUSED and options.enable_lora
    return Load(
        sequences=options.max_rolling_batch_size,
        tokens=options.max_model_len,
        max_loras=options.max_loras if serves_adapters else 0,
        max_lora_rank=options.max_lora_rank,
        max_cpu_loras=options.cpu_loras if serves_adapters else 0,
    )
