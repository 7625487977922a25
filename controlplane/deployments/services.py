"""Operators' changes to deployments and their scaling: each is recorded and handed to the reconciler."""

from __future__ import annotations

import re
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.publishing import base_publish
from controlplane.deployments.journal import actor_name, step_add
from controlplane.deployments.models import ROLLED, Deployment, DeploymentStep, Scaling, Target
from controlplane.deployments.phases.recorder import scale_up_begin, scale_ups_overtake
from controlplane.deployments.placement.placements import unserved_adapters
from controlplane.deployments.rollouts.ends import rollouts_end_with
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.deployments.scaling.selectors import policy_of
from controlplane.deployments.scheduling import RECONCILE_TASK
from controlplane.deployments.selectors import deployment_locked
from controlplane.deployments.validation import HOSTINGS, deployment_check, policy_check
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.queue import enqueue

CHANGEABLE: Final = (
    "min_copies",
    "max_copies",
    "instance_type",
    "fallback_instance_types",
    "min_instances",
    "max_instances",
    "variant",
    "urls",
    "image",
    "image_family",
    "options",
    "environment",
    "compute",
    "adapter_scope",
)
"""Fields of the desired state that can be changed; the others identify the deployment."""
_MEASURED = ("metric", "target", "in_after")
"""Fields that determine how the load is counted."""
_RESERVED_NAME: Final = re.compile(r".*-([0-9a-f]{8}|[0-9a-f]{20})")
"""Names that end like those of our resources could be mistaken for another deployment's resources."""


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
            "name must be 1-36 lower-case letters, digits and inner hyphens, and must not "
            "end in 8 or 20"
            " hexadecimal digits, as the names of its resources do",
            field="name",
        )
    # Lock the target so that the second of two deployments on one endpoint sees the first.
    target = Target.objects.select_for_update().get(pk=target.pk)
    if Deployment.objects.filter(name=name, removed_at=None).exists():
        raise ConflictError(f"deployment {name!r} already exists")
    deployment = Deployment(
        name=name,
        target=target,
        base_model=base_model,
        endpoint=endpoint,
        created_by=actor_name(),
        hosting=hosting or HOSTINGS[target.kind][0],
        **values,
    )
    deployment_check(deployment)
    deployment.save()
    step_add(deployment, "create", deployment.name, f"{base_model.name} in {target.name}")
    _engine_changed(deployment)
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
        raise ConflictError(f"{active} is {active.status}: wait until it ends, or abort it")
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
    if set(changed) & {"image", "image_family", "options", "variant"}:
        _engine_changed(row)
    if policy is not None and "min_copies" in changed:
        base_publish(row.base_model)  # min_copies decides whether gateways hold requests
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="", action="deployment.update", target=row, before=before, after=_desired_snapshot(row)
    )
    return row


@transaction.atomic
def scaling_set(*, deployment: Deployment, **values: Any) -> Scaling:
    """Set the scaling policy, replacing an existing one.

    Args:
        values: fields of ScalingPolicy; `min_copies` and `max_copies` change the deployment's own.

    Raises:
        InvalidInputError: a value is malformed, out of bounds, or not valid for this kind of target.
        ConflictError: the deployment is being removed, or others on its endpoint have other settings.
    """
    own = {name: values.pop(name) for name in ("min_copies", "max_copies") if name in values}
    if deployment.endpoint:
        # Lock the target before the deployment, as all callers do: the second of two deployments on an
        # endpoint then sees the policy of the first.
        Target.objects.select_for_update().get(pk=deployment.target_id)
    row = deployment_locked(deployment)
    # Start from the previous minimum: a new policy removes serving copies only after it has read the load.
    min_before = row.min_copies
    if own:
        row = deployment_update(deployment=row, **own)
    policy = ScalingPolicy.from_json(values, min_copies=row.min_copies, max_copies=row.max_copies)
    policy_check(row, policy)
    scaling = Scaling.objects.select_for_update().filter(deployment=row).first()
    before = None if scaling is None else scaling.policy
    if scaling is None:
        scaling = Scaling(deployment=row)
    if before is None:
        least, most = policy.bounds(timezone.now())
        scaling.copies, scaling.state = min(max(min_before, row.min_copies, least), most), {}
    scaling.policy = policy.to_json()
    if before is not None and any(before.get(name) != scaling.policy[name] for name in _MEASURED):
        # Earlier readings of another metric or target are not comparable.
        scaling.state = {}
    scaling.save()
    if before != scaling.policy:
        _publish_scaling(row, "scaling", before, scaling.policy)
    return scaling


@transaction.atomic
def scaling_clear(*, deployment: Deployment) -> None:
    """Delete the policy; the deployment has `min_copies` copies again, and no autoscaler.

    Raises:
        NotFoundError: it has no policy.
        ConflictError: it is being removed.
    """
    row = deployment_locked(deployment)
    scaling = Scaling.objects.select_for_update().filter(deployment=row, policy__isnull=False).first()
    if scaling is None:
        raise NotFoundError(f"deployment {row.name} has no scaling policy")
    before = scaling.policy
    scaling.policy, scaling.state, scaling.seen = None, {}, {}
    scaling.save()
    _publish_scaling(row, "scaling_off", before, None)


@transaction.atomic
def deployment_remove(*, deployment: Deployment) -> Deployment:
    """Start the removal of a deployment and its resources, routes first; repeated calls change nothing.

    Raises:
        ConflictError: it is already removed.
    """
    row = Deployment.objects.select_for_update().get(pk=deployment.pk)
    if row.removed_at is not None:
        raise ConflictError(f"deployment {row.name} is already removed")
    if row.removal_asked_at is not None:
        return row
    now = timezone.now()
    row.removal_asked_at, row.next_at, row.generation = now, now, row.generation + 1
    row.status, row.reason, row.failures, row.routes_version = Deployment.Status.REMOVING, "", 0, 0
    row.save(
        update_fields=[
            "removal_asked_at",
            "next_at",
            "generation",
            "status",
            "reason",
            "failures",
            "routes_version",
        ]
    )
    rollouts_end_with(deployment=row)
    step_add(row, "remove", row.name, "requested")
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
    step_add(row, "retry", row.name, "requested")
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(tenant="", action="deployment.retry", target=row, after={"status": row.status})
    return row


def _engine_changed(row: Deployment) -> None:
    """Tell gateways what the copies will serve, and note the adapters that they will not."""
    base_publish(row.base_model)
    if unserved := unserved_adapters(row):
        step_add(row, "capability", "", unserved, DeploymentStep.Outcome.NOTED)


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
        deployment=row,
        before=before,
        after=row.min_copies,
        cause=f"requested by {actor_name()}",
        began=now,
        decided=now,
    )


def _desired_snapshot(deployment: Deployment) -> dict[str, Any]:
    """Return the desired state for the audit log."""
    fields = ("name", "target", "base_model", "hosting", "endpoint", *CHANGEABLE)
    values = snapshot(deployment)
    return {field: values[field] for field in fields}


def _publish_scaling(row: Deployment, action: str, before: Any, after: Any) -> None:
    now = timezone.now()
    Deployment.objects.filter(pk=row.pk).update(generation=row.generation + 1, next_at=now)
    summary = ", ".join(f"{name}: {value}" for name, value in (after or {}).items())
    step_add(row, action, row.name, summary or "requested")
    base_publish(row.base_model)
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="",
        action=f"deployment.{action}",
        target=row,
        before=before and {"policy": before},
        after=after and {"policy": after},
    )
