"""What people do to scaling policies."""

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
"""Fields by which the load has been counted so far."""


@transaction.atomic
def scaling_set(*, deployment: Deployment, **values: Any) -> Scaling:
    """Puts a policy in force, in the place of the one that there is.

    Args:
        values: ScalingPolicy's fields; `min_copies` and `max_copies` change the deployment's own.

    Raises:
        InvalidInputError: a value is malformed, out of its bounds, or not for this kind of target.
        ConflictError: the deployment is being removed, or others share the endpoint and want another way.
    """
    own = {name: values.pop(name) for name in ("min_copies", "max_copies") if name in values}
    if deployment.endpoint:
        # Before the deployment, as everybody takes them: of two that share an endpoint the second sees the
        # first one's policy.
        Target.objects.select_for_update().get(pk=deployment.target_id)
    row = deployment_locked(deployment)
    # What serves is not taken away by a policy's first moment, but by what it sees.
    there = row.min_copies
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
        scaling.copies, scaling.state = min(max(there, row.min_copies, least), most), {}
    scaling.policy = policy.to_json()
    if before is not None and any(before.get(name) != scaling.policy[name] for name in _MEASURED):
        # What was seen of another metric, or by another target, says nothing by this one.
        scaling.state = {}
    scaling.save()
    if before != scaling.policy:
        _changed(row, "scaling", before, scaling.policy)
    return scaling


@transaction.atomic
def scaling_clear(*, deployment: Deployment) -> None:
    """Takes the policy away; the deployment has `min_copies` again, and no autoscaler.

    Raises:
        NotFoundError: there is none.
        ConflictError: the deployment is being removed.
    """
    row = deployment_locked(deployment)
    scaling = Scaling.objects.select_for_update().filter(deployment=row, policy__isnull=False).first()
    if scaling is None:
        raise NotFoundError(f"deployment {row.name} has no scaling policy")
    before = scaling.policy
    scaling.policy, scaling.state, scaling.seen = None, {}, {}
    scaling.save()
    _changed(row, "scaling_off", before, None)


def _changed(row: Deployment, action: str, before: Any, after: Any) -> None:
    now = timezone.now()
    Deployment.objects.filter(pk=row.pk).update(generation=row.generation + 1, next_at=now)
    told = ", ".join(f"{name}: {value}" for name, value in (after or {}).items())
    step_add(row, action, row.name, told or "asked for")
    base_publish(row.base_model)
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="", action=f"deployment.{action}", target=row, before=before and {"policy": before},
        after=after and {"policy": after},
    )  # fmt: skip
