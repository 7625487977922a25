"""Queries for copies, targets and deployments."""

from __future__ import annotations

from django.db.models import Count, QuerySet

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Deployment, DeploymentStep, Placement, RemovedCopy, Target
from controlplane.errors import ConflictError, NotFoundError


def copy_list(*, base_model: BaseModel | None = None) -> QuerySet[Copy]:
    """Return all copies, or those of one base model, oldest first."""
    copies = Copy.objects.select_related("base_model", "deployment")
    return copies.filter(base_model=base_model) if base_model else copies


def copy_get(*, copy_id: str) -> Copy:
    """Return a copy by its id. Raises NotFoundError."""
    copy = Copy.objects.select_related("base_model", "deployment").filter(pk=copy_id).first()
    if copy is None:
        raise NotFoundError(f"copy {copy_id!r} does not exist")
    return copy


def copies_and_removed(*, deployments: QuerySet[Deployment]) -> dict[str, Copy | RemovedCopy]:
    """Return the deployments' copies by id, including those that were removed lately."""
    found: dict[str, Copy | RemovedCopy] = {}
    # In this order: a copy that is removed between the two queries is not missed.
    found |= {copy.pk: copy for copy in Copy.objects.filter(deployment__in=deployments)}
    found |= {copy.pk: copy for copy in RemovedCopy.objects.filter(deployment__in=deployments)}
    return found


def target_list(*, kind: Target.Kind | None = None) -> QuerySet[Target]:
    """Return all targets, or those of one kind, by name."""
    targets = Target.objects.order_by("name")
    return targets.filter(kind=kind) if kind else targets


def target_get(*, name: str) -> Target:
    """Return a target by its name. Raises NotFoundError, which lists the existing targets."""
    target = Target.objects.filter(name=name).first()
    if target is None:
        known = ", ".join(Target.objects.values_list("name", flat=True)) or "none"
        raise NotFoundError(f"target {name!r} does not exist; existing targets: {known}")
    return target


def deployment_list() -> QuerySet[Deployment]:
    """Return deployments by name, including deployments under removal."""
    rows = Deployment.objects.filter(removed_at=None).select_related("target", "base_model")
    return rows.prefetch_related("copies").order_by("name", "pk")


def deployment_names(*, part: str) -> QuerySet[Deployment, str]:
    """List the names of deployments that contain `part`, ignoring case."""
    rows = Deployment.objects.filter(removed_at=None, name__icontains=part)
    return rows.order_by("name").values_list("name", flat=True)


def deployment_list_troubled() -> QuerySet[Deployment]:
    """Return the failed and degraded deployments, failed ones first."""
    trouble = (Deployment.Status.FAILED, Deployment.Status.DEGRADED)
    return deployment_list().filter(status__in=trouble).order_by("-status", "name")


def deployment_status_counts() -> dict[str, int]:
    """Count deployments by status, including deployments under removal. One query."""
    rows = Deployment.objects.filter(removed_at=None).order_by()
    return dict(rows.values_list("status").annotate(Count("pk")))


def copy_list_silent() -> QuerySet[Copy]:
    """Return the copies that do not respond, the longest silent first."""
    return copy_list().filter(silent_since__isnull=False).order_by("silent_since", "pk")


def deployment_get(*, name: str) -> Deployment:
    """Return a deployment by its name. Raises NotFoundError, also after its removal."""
    deployment = deployment_list().filter(name=name).first()
    if deployment is None:
        raise NotFoundError(f"deployment {name!r} does not exist")
    return deployment


def deployment_newest(*, name: str) -> Deployment | None:
    """Return the newest deployment of this name, also if it was removed; None without one."""
    return Deployment.objects.filter(name=name).order_by("-pk").first()


def deployment_list_on(*, base_model: BaseModel) -> QuerySet[Deployment]:
    """Return a base model's deployments that are not being removed, by name."""
    return deployment_list().filter(base_model=base_model, removal_asked_at=None)


def placement_list(*, deployment: Deployment) -> QuerySet[Placement]:
    """Return the adapters on a deployment, by engine name."""
    return Placement.objects.filter(deployment=deployment).order_by("engine_name")


def step_list(*, deployment: Deployment, action: str = "") -> QuerySet[DeploymentStep]:
    """Return a deployment's steps, or those of one action, newest first."""
    steps = DeploymentStep.objects.filter(deployment=deployment).order_by("-pk")
    return steps.filter(action=action) if action else steps


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
        raise ConflictError(f"deployment {row.name} is being removed: create a new deployment")
    return row
