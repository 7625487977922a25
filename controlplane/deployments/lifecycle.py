"""Operators' changes to deployments: each change is recorded and handed to the reconciler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.catalog.models import BaseModel
from controlplane.deployments.containers.images import DEFAULT_IMAGE, IMAGES, Family, Image
from controlplane.deployments.containers.options import LmiOptions, worker_options_check
from controlplane.deployments.desired import requirements_of
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.phases.recorder import scale_up_begin, scale_ups_overtake
from controlplane.deployments.rollouts.ends import rollouts_end_with
from controlplane.deployments.rollouts.models import ROLLED
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.scaling.checks import policy_check
from controlplane.deployments.scaling.selectors import policy_of
from controlplane.deployments.secret_variables import secret_variable_check
from controlplane.deployments.services import base_publish, base_url
from controlplane.deployments.steps import actor_name, step_add
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.queue import enqueue

RECONCILE_TASK: Final = "deployments.reconcile"
Hosting = Deployment.Hosting

HOSTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    Target.Kind.SAGEMAKER: (Hosting.COMPONENTS, Hosting.PRELOADED, Hosting.FUSED, Hosting.ON_DEMAND),
    Target.Kind.LOCAL: (Hosting.ON_DEMAND,),
    Target.Kind.OPENAI_HTTP: (Hosting.API, Hosting.ON_DEMAND, Hosting.FUSED),
}
"""Hosting modes by kind of target; the first one is the default."""
CHANGEABLE: Final = (
    "min_copies", "max_copies", "instance_type", "min_instances", "max_instances", "variant", "urls", "image",
    "image_family", "options", "environment", "compute", "adapter_scope",
)  # fmt: skip
"""Fields of the desired state that can be changed; the others identify the deployment."""
_OF_ENDPOINT: Final = ("instance_type", "min_instances", "max_instances")
_RESERVED_NAME: Final = re.compile(r".*-([0-9a-f]{8}|[0-9a-f]{20})")
"""Names that end like those of our resources could be mistaken for another deployment's resources."""
_ENV_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,200}")
_COMPUTE: Final = ("accelerators", "cpus", "memory_mb", "max_memory_mb")


@transaction.atomic
def deployment_create(
    *, name: str, target: Target, base_model: BaseModel, hosting: str = "", endpoint: str = "", **values: Any
) -> Deployment:
    """Record the desired state of a new deployment; the reconciler creates its resources.

    Args:
        hosting: hosting mode; "" for the default of the target's kind.
        endpoint: sagemaker: a name that deployments of several base models share.
        values: fields of CHANGEABLE that differ from their defaults.

    Raises:
        InvalidInputError: a value is malformed, out of bounds, or not valid for this kind of target.
        ConflictError: the name is taken, or the shared endpoint has other instances.
    """
    if SLUG_PATTERN.fullmatch(name) is None or len(name) > 36 or _RESERVED_NAME.fullmatch(name):
        raise InvalidInputError(
            "a deployment's name is 1-36 lower-case letters, digits and inner hyphens, and does not "
            "end in 8 or 20"
            " hexadecimal digits, as the names of its resources do",
            field="name",
        )
    # Lock the target so that the second of two deployments on one endpoint sees the first.
    target = Target.objects.select_for_update().get(pk=target.pk)
    if Deployment.objects.filter(name=name, removed_at=None).exists():
        raise ConflictError(f"there is a deployment {name!r} already")
    deployment = Deployment(
        name=name, target=target, base_model=base_model, endpoint=endpoint, created_by=actor_name(),
        hosting=hosting or HOSTINGS[target.kind][0], **values,
    )  # fmt: skip
    deployment_check(deployment)
    deployment.save()
    step_add(deployment, "create", deployment.name, f"{base_model.name} in {target.name}")
    enqueue(RECONCILE_TASK, deployment_id=deployment.pk)
    audit_record(
        tenant="", action="deployment.create", target=deployment, after=_desired_snapshot(deployment)
    )
    return deployment


@transaction.atomic
def deployment_update(*, deployment: Deployment, **values: Any) -> Deployment:
    """Replace the given fields of CHANGEABLE; the reconciler applies them.

    Raises:
        InvalidInputError: as for `deployment_create`.
        ConflictError: the deployment is being removed, a rollout is changing its copies, or its instances
            would differ from those of its shared endpoint.
    """
    row = deployment_locked(deployment)
    before = _desired_snapshot(row)
    if set(values) & set(ROLLED) and (active := deployment_rollout_active(deployment=row)) is not None:
        raise ConflictError(f"{active} is {active.status}: let it end, or abort it")
    for field, value in values.items():
        setattr(row, field, value)
    deployment_check(row)
    if (policy := policy_of(row)) is not None:
        policy_check(row, policy)
    changed = [field for field in CHANGEABLE if before[field] != _desired_snapshot(row)[field]]
    if not changed:
        return row
    row.generation += 1
    row.next_at = timezone.now()
    fields = ["generation", "next_at", *changed]
    if "adapter_scope" in changed:
        row.routes_version = 0
        fields.append("routes_version")
    row.save(update_fields=fields)
    summary = ", ".join(f"{field}: {before[field]} -> {getattr(row, field)}" for field in changed)
    step_add(row, "update", row.name, summary)
    if policy is None and "min_copies" in changed and row.target.kind != Target.Kind.OPENAI_HTTP:
        _record_manual_scaling(row, before=int(before["min_copies"]))
    if policy is not None and "min_copies" in changed:
        base_publish(row.base_model)  # min_copies decides whether gateways hold requests
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="", action="deployment.update", target=row, before=before, after=_desired_snapshot(row)
    )
    return row


@transaction.atomic
def deployment_remove(*, deployment: Deployment) -> Deployment:
    """Start the removal of a deployment and its resources, routes first; repeated calls change nothing.

    Raises:
        ConflictError: it is already removed.
    """
    row = Deployment.objects.select_for_update().get(pk=deployment.pk)
    if row.removed_at is not None:
        raise ConflictError(f"deployment {row.name} is gone already")
    if row.removal_asked_at is not None:
        return row
    now = timezone.now()
    row.removal_asked_at, row.next_at, row.generation = now, now, row.generation + 1
    row.status, row.reason, row.failures, row.routes_version = Deployment.Status.REMOVING, "", 0, 0
    row.save(
        update_fields=[
            "removal_asked_at", "next_at", "generation", "status", "reason", "failures", "routes_version",
        ]
    )  # fmt: skip
    rollouts_end_with(deployment=row)
    step_add(row, "remove", row.name, "asked for")
    if policy_of(row) is not None:
        base_publish(row.base_model)  # gateways must stop holding requests for its copies
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(tenant="", action="deployment.remove", target=row, before=_desired_snapshot(row))
    return row


@transaction.atomic
def deployment_retry(*, deployment: Deployment) -> Deployment:
    """Reconcile a deployment now and recreate failed resources.

    Raises:
        ConflictError: it is removed.
    """
    row = deployment_locked(deployment, removing=True)
    row.next_at = row.retry_at = timezone.now()
    row.failures, row.generation = 0, row.generation + 1
    row.save(update_fields=["next_at", "retry_at", "failures", "generation"])
    step_add(row, "retry", row.name, "asked for")
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(tenant="", action="deployment.retry", target=row, after={"status": row.status})
    return row


def deployment_locked(deployment: Deployment, *, removing: bool = False) -> Deployment:
    """Return the deployment's current row, locked until the transaction ends.

    Args:
        removing: accept a deployment that is being removed.

    Raises:
        ConflictError: the deployment is removed or, without `removing`, being removed.
    """
    rows = Deployment.objects.select_for_update(of=("self",)).select_related("target", "base_model")
    row = rows.get(pk=deployment.pk)
    if row.removed_at is not None or not (removing or row.is_wanted):
        raise ConflictError(f"deployment {row.name} is being removed: make another")
    return row


def _record_manual_scaling(row: Deployment, *, before: int) -> None:
    """Record an operator's scale-up; without a policy no autoscaler does so."""
    now = timezone.now()
    if row.min_copies < before:
        scale_ups_overtake(deployment=row, at=now)
        return
    if row.target.kind == Target.Kind.SAGEMAKER:
        # On SageMaker more copies than the minimum may run already.
        before = max([before, *(int(item.get("has", {}).get("copies", 0)) for item in row.resources)])
        if row.min_copies <= before:
            return
    scale_up_begin(
        deployment=row, before=before, after=row.min_copies, cause=f"asked for by {actor_name()}",
        began=now, decided=now,
    )  # fmt: skip


def _desired_snapshot(deployment: Deployment) -> dict[str, Any]:
    """Return the desired state for the audit log."""
    fields = ("name", "target", "base_model", "hosting", "endpoint", *CHANGEABLE)
    values = snapshot(deployment)
    return {field: values[field] for field in fields}


def deployment_check(deployment: Deployment) -> None:
    """Validate the desired state and fill in derived fields.

    Raises:
        InvalidInputError: a value is malformed, out of bounds, or not valid for this kind of target.
        ConflictError: the shared endpoint has other instances.
    """
    kind = deployment.target.kind
    if deployment.hosting not in HOSTINGS[kind]:
        listed = ", ".join(HOSTINGS[kind])
        raise InvalidInputError(f"hosting in a target of kind {kind} is one of {listed}", field="hosting")
    if deployment.adapter_scope not in Deployment.Scope.values:
        listed = ", ".join(Deployment.Scope.values)
        raise InvalidInputError(f"adapter_scope is one of {listed}", field="adapter_scope")
    if not 1 <= deployment.max_copies <= 1000 or not 0 <= deployment.min_copies <= deployment.max_copies:
        raise InvalidInputError(
            "copies: 0 <= min_copies <= max_copies, and 1 <= max_copies <= 1000", field="min_copies"
        )
    _check_environment(deployment.environment)
    _check_variant(deployment)
    if deployment.urls and kind != Target.Kind.OPENAI_HTTP:
        raise InvalidInputError("urls is for targets of kind openai_http", field="urls")
    if not isinstance(deployment.urls, list) or len(deployment.urls) > 64:
        raise InvalidInputError("give at most 64 urls, such as http://vllm:8000", field="urls")
    deployment.urls = [base_url(url, field="urls") for url in deployment.urls]
    if kind == Target.Kind.SAGEMAKER:
        _check_sagemaker(deployment)
        return
    for field in ("endpoint", "instance_type", "image", "image_family", "compute"):
        if getattr(deployment, field):
            raise InvalidInputError(f"{field} is for targets of kind sagemaker", field=field)
    LmiOptions.of(deployment.options, Image("worker", Family.WORKER, lora=True))
    if kind == Target.Kind.LOCAL and deployment.min_copies > 16:
        raise InvalidInputError("at most 16 copies on one host", field="min_copies")


def _check_variant(deployment: Deployment) -> None:
    base = deployment.base_model
    known = list(base.variants.values_list("name", flat=True))
    if deployment.variant and deployment.variant not in known:
        listed = ", ".join(known) or "none yet"
        raise InvalidInputError(f"{base.name} has the variants: {listed}", field="variant")


def _check_sagemaker(deployment: Deployment) -> None:
    image = Image.of(deployment.image or DEFAULT_IMAGE, family=deployment.image_family)
    deployment.image, deployment.image_family = image.name, image.family.value
    if (region := deployment.target.region) in image.absent:
        others = ", ".join(item.name for item in IMAGES.values() if region not in item.absent)
        text = f"AWS does not publish {image.name} in {region}: give an image's address, or one of {others}"
        raise InvalidInputError(text, field="image")
    options = LmiOptions.of(deployment.options, image, fused=deployment.hosting == Hosting.FUSED)
    if image.family is Family.WORKER:
        worker_options_check(options, checkpoint=deployment.base_model.source)
    if deployment.hosting != Hosting.FUSED and not (image.lora and options.enable_lora):
        text = (
            f"{image.name} as it is set serves no adapters: choose hosting fused, or an lmi image "
            f"with enable_lora"
        )
        raise InvalidInputError(text, field="hosting")
    if deployment.hosting == Hosting.ON_DEMAND and image.family != Family.WORKER:
        raise InvalidInputError("only images of family worker fetch adapters on demand", field="hosting")
    if (
        not 1 <= deployment.max_instances <= 1000
        or not 0 <= deployment.min_instances <= deployment.max_instances
    ):
        text = "instances: 0 <= min_instances <= max_instances, and 1 <= max_instances <= 1000"
        raise InvalidInputError(text, field="min_instances")
    if deployment.endpoint:
        _check_endpoint(deployment)
    by_hand = {key: value for key, value in deployment.compute.items() if key in _COMPUTE}
    if by_hand and not deployment.compute.get("reasons"):
        deployment.compute = _compute_by_hand(by_hand)
        return
    found = requirements_of(deployment)
    deployment.compute = {
        "accelerators": found.accelerators, "cpus": found.cpus, "memory_mb": found.memory_mb,
        "copies_per_instance": found.copies_per_instance, "reasons": list(found.reasons),
    }  # fmt: skip


def _compute_by_hand(values: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
            raise InvalidInputError(f"compute.{key} must be a number from 0", field=f"compute.{key}")
    if values.get("memory_mb", 0) < 128:
        raise InvalidInputError("compute.memory_mb must be at least 128", field="compute.memory_mb")
    return dict(values)


def _check_endpoint(deployment: Deployment) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,53}", deployment.endpoint):
        text = "an endpoint's name is 1-54 letters, digits and inner hyphens"
        raise InvalidInputError(text, field="endpoint")
    if deployment.endpoint.startswith("gw-"):
        text = "endpoint: gw- begins the names of deployments' own endpoints: choose another"
        raise InvalidInputError(text, field="endpoint")
    others = Deployment.objects.filter(
        target=deployment.target, endpoint=deployment.endpoint, removal_asked_at=None, removed_at=None
    ).exclude(pk=deployment.pk)
    for other in others:
        for field in _OF_ENDPOINT:
            if getattr(other, field) != getattr(deployment, field):
                raise ConflictError(
                    f"endpoint {deployment.endpoint} is shared with {other.name}, whose {field} is"
                    f" {getattr(other, field)}: it has to be the same"
                )


def _check_environment(environment: Any) -> None:
    if not isinstance(environment, dict) or len(environment) > 64:
        raise InvalidInputError("environment is an object of at most 64 names", field="environment")
    for name, value in environment.items():
        if _ENV_NAME.fullmatch(name) is None or not isinstance(value, str) or len(value) > 1024:
            text = f"environment {name[:60]!r}: names are letters, digits and _, values texts of at most 1024"
            raise InvalidInputError(text, field="environment")
        secret_variable_check(name, field="environment")
