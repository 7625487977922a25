"""End rollouts and roll them back: automatically, by hand, or with their deployment."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.deployments.journal import step_add
from controlplane.deployments.models import ROLLED, Deployment, DeploymentRollout, DeploymentStep
from controlplane.deployments.rollouts.states import state_values
from controlplane.platform.audit.services import audit_record

Status = DeploymentRollout.Status
Outcome = DeploymentStep.Outcome


@transaction.atomic
def rollout_take_back(*, rollout: DeploymentRollout, reason: str, aborted: bool = False) -> None:
    """Make the previous state the desired one again. The caller holds the lock on the deployment's row."""
    row, now = rollout.deployment, timezone.now()
    previous = state_values(row)
    for field in ROLLED:
        setattr(row, field, rollout.before[field])
    row.generation += 1
    row.next_at, row.failures, row.retry_at = now, 0, now
    row.save(update_fields=[*ROLLED, "generation", "next_at", "failures", "retry_at"])
    _settle(rollout, Status.ROLLING_BACK, reason, turned_at=now, ready_at=None, aborted=aborted)
    outcome = Outcome.NOTED if aborted else Outcome.FAILED
    step_add(row, "rollout.take_back", str(rollout.pk), reason, outcome)
    result = {"status": rollout.status, "reason": reason[:1000]}
    audit_record(
        tenant="",
        action="deployment_rollout.take_back",
        target=rollout,
        before=previous,
        after=state_values(row) | result,
    )


@transaction.atomic
def rollout_end(*, rollout: DeploymentRollout, reason: str) -> None:
    """End a rollout once all copies have one state: the new one or, after a rollback, the previous one."""
    status = Status.COMPLETED
    if rollout.status == Status.ROLLING_BACK:
        status = Status.ABORTED if rollout.aborted else Status.ROLLED_BACK
    _settle(rollout, status, reason, ended_at=timezone.now())
    step_add(rollout.deployment, f"rollout.{status}", str(rollout.pk), reason, Outcome.NOTED)
    result = {"status": status, "reason": reason[:1000]}
    audit_record(tenant="", action=f"deployment_rollout.{status}", target=rollout, after=result)


@transaction.atomic
def rollouts_end_with(*, deployment: Deployment) -> None:
    """End the active rollouts of a deployment that is to be removed."""
    for rollout in deployment.rollouts.filter(status__in=DeploymentRollout.ACTIVE):
        _settle(rollout, Status.ABORTED, "the deployment is being removed", ended_at=timezone.now())
        step_add(deployment, "rollout.aborted", str(rollout.pk), rollout.reason, Outcome.NOTED)
        result = {"status": rollout.status, "reason": rollout.reason}
        audit_record(tenant="", action="deployment_rollout.aborted", target=rollout, after=result)


def _settle(rollout: DeploymentRollout, status: Status, reason: str, **values: Any) -> None:
    for field, value in (values | {"status": status, "reason": reason}).items():
        setattr(rollout, field, value)
    rollout.save(update_fields=["status", "reason", *values])
