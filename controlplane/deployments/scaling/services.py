"""Operators' changes to scaling policies."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.deployments.lifecycle import RECONCILE_TASK, deployment_locked, deployment_update
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.scaling.checks import policy_check
from controlplane.deployments.scaling.models import Scaling
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.deployments.services import base_publish
from controlplane.deployments.steps import step_add
from controlplane.errors import NotFoundError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue

_MEASURED = ("metric", "target", "in_after")
"""Fields that determine how the load is counted."""


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
    policy = ScalingPolicy.of(values, min_copies=row.min_copies, max_copies=row.max_copies)
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
        _publish_change(row, "scaling", before, scaling.policy)
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
    _publish_change(row, "scaling_off", before, None)


def _publish_change(row: Deployment, action: str, before: Any, after: Any) -> None:
    now = timezone.now()
    Deployment.objects.filter(pk=row.pk).update(generation=row.generation + 1, next_at=now)
    summary = ", ".join(f"{name}: {value}" for name, value in (after or {}).items())
    step_add(row, action, row.name, summary or "asked for")
    base_publish(row.base_model)
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="", action=f"deployment.{action}", target=row, before=before and {"policy": before},
        after=after and {"policy": after},
    )  # fmt: skip
