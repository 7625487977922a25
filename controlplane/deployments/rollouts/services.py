"""Operators' actions on deployments' rollouts. Automatic decisions are in `decisions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.deployments.journal import actor_name, step_add
from controlplane.deployments.models import ROLLED, Deployment, DeploymentRollout, Target
from controlplane.deployments.rollouts.ends import rollout_take_back
from controlplane.deployments.rollouts.policy import SHARES, RolloutPolicy
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.states import state_values
from controlplane.deployments.scheduling import RECONCILE_TASK
from controlplane.deployments.validation import deployment_check
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue

Status = DeploymentRollout.Status
Strategy = DeploymentRollout.Strategy
_SERVES: Final = (Deployment.Status.SERVING, Deployment.Status.DEGRADED)
_UPDATE_ACTION: Final = "update_inference_component"
_ENDPOINT_UPDATE_ACTION: Final = "update_endpoint"


@transaction.atomic
def deployment_rollout_start(
    *,
    deployment: Deployment,
    change: Mapping[str, Any],
    strategy: str = Strategy.ROLLING,
    policy: Mapping[str, Any] | None = None,
) -> DeploymentRollout:
    """Start a rollout that moves a deployment's copies to the state in `change`, step by step.

    Args:
        change: fields of ROLLED with new values.
        policy: fields of RolloutPolicy that differ from their defaults.

    Raises:
        InvalidInputError: a value is malformed or not valid for this kind of target, or nothing would change.
        ConflictError: the deployment does not serve, or already has a rollout.
    """
    row = _locked(deployment)
    kind = row.target.kind
    if strategy not in Strategy.values:
        raise InvalidInputError(f"strategy must be one of {', '.join(Strategy.values)}", field="strategy")
    if kind == Target.Kind.SAGEMAKER and strategy != Strategy.ROLLING:
        text = "SageMaker replaces copies itself: use strategy rolling"
        raise InvalidInputError(text, field="strategy")
    checked = _with_shares(RolloutPolicy.from_json(policy or {}, kind=kind), strategy)
    if (active := deployment_rollout_active(deployment=row)) is not None:
        raise ConflictError(f"{active} is {active.status}: wait until it ends, or abort it")
    if row.status not in _SERVES:
        raise ConflictError(
            f"deployment {row.name} does not serve yet: update it directly, or wait until it serves"
        )
    if unknown := sorted(set(change) - set(ROLLED)):
        raise InvalidInputError(
            f"change has no field {unknown[0]}; existing fields: {', '.join(ROLLED)}", field="change"
        )
    _check_batch_size(checked, row)
    if strategy == Strategy.CANARY:
        _only_canary(row)
    before = state_values(row)
    for field, value in change.items():
        setattr(row, field, value)
    deployment_check(row)
    after = state_values(row)
    if after == before:
        raise InvalidInputError("the change equals the current state", field="change")
    if strategy == Strategy.CANARY and (both := {*_servers(row, before)} & {*_servers(row, after)}):
        text = f"{min(both)} serves already: a canary requires servers of its own"
        raise InvalidInputError(text, field="change")
    now = timezone.now()
    row.generation += 1
    # Copies that failed to start earlier may be started again.
    row.next_at = row.retry_at = now
    row.save(update_fields=[*ROLLED, "generation", "next_at", "retry_at"])
    rollout = DeploymentRollout.objects.create(
        deployment=row,
        strategy=strategy,
        before=before,
        after=after,
        policy=checked.to_dict(),
        turned_at=now,
        reason="waiting to start",
        created_by=actor_name(),
    )
    summary = ", ".join(
        f"{field}: {before[field]} -> {after[field]}" for field in ROLLED if before[field] != after[field]
    )
    step_add(row, "rollout.start", str(rollout.pk), f"{strategy}: {summary}")
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="",
        action="deployment_rollout.start",
        target=rollout,
        before=before,
        after=after | {"strategy": strategy, "policy": rollout.policy},
    )
    return rollout


@transaction.atomic
def deployment_rollout_pause(*, rollout: DeploymentRollout) -> DeploymentRollout:
    """Pause a rollout at its step; failing copies cause no decision meanwhile.

    Raises:
        ConflictError: it is not running, or SageMaker already performs it and cannot pause.
    """
    rollout = _active(rollout, Status.RUNNING)
    row = rollout.deployment
    if row.target.kind == Target.Kind.SAGEMAKER and _is_update_sent(rollout):
        raise ConflictError(
            "SageMaker is already replacing the copies and cannot pause: wait, or abort the rollout"
        )
    return _set_status(rollout, Status.PAUSED, "pause", "paused manually")


@transaction.atomic
def deployment_rollout_resume(*, rollout: DeploymentRollout) -> DeploymentRollout:
    """Resume a rollout; only what happens from now on is judged.

    Raises:
        ConflictError: it is not paused.
    """
    rollout = _active(rollout, Status.PAUSED)
    rollout.ready_at, rollout.judged_at, rollout.verdict = None, None, ""
    rollout.turned_at = timezone.now()
    return _set_status(rollout, Status.RUNNING, "resume", "resumed manually")


@transaction.atomic
def deployment_rollout_abort(*, rollout: DeploymentRollout) -> DeploymentRollout:
    """Abort a rollout: the previous state becomes the desired one again.

    Raises:
        ConflictError: it has ended, or is already rolling back.
    """
    rollout = _active(rollout, Status.RUNNING, Status.PAUSED)
    rollout_take_back(rollout=rollout, reason="aborted manually", aborted=True)
    enqueue(RECONCILE_TASK, deployment_id=rollout.deployment_id)
    audit_record(
        tenant="", action="deployment_rollout.abort", target=rollout, after={"status": rollout.status}
    )
    return rollout


@transaction.atomic
def deployment_rollout_judged(
    *, rollout: DeploymentRollout, verdict: str, reason: str, figures: Mapping[str, Any]
) -> None:
    """Store the verdict of metered usage on a step.

    The verdict is dropped if the rollout has moved on to another step meanwhile.
    """
    now = timezone.now()
    values: dict[str, Any] = {"verdict": verdict, "judged_at": now, "figures": dict(figures)}
    if verdict == "worse":
        values["reason"] = reason
    rows = DeploymentRollout.objects.filter(pk=rollout.pk, status=Status.RUNNING, step=rollout.step)
    if rows.update(**values):
        Deployment.objects.filter(pk=rollout.deployment_id, next_at__gt=now).update(next_at=now)


def _set_status(rollout: DeploymentRollout, status: Status, verb: str, reason: str) -> DeploymentRollout:
    before = {"status": rollout.status}
    rollout.status, rollout.reason = status, reason
    rollout.save(update_fields=["status", "reason", "ready_at", "judged_at", "verdict", "turned_at"])
    row = rollout.deployment
    row.next_at = timezone.now()
    row.save(update_fields=["next_at"])
    step_add(row, f"rollout.{verb}", str(rollout.pk), reason)
    enqueue(RECONCILE_TASK, deployment_id=row.pk)
    audit_record(
        tenant="",
        action=f"deployment_rollout.{verb}",
        target=rollout,
        before=before,
        after={"status": status},
    )
    return rollout


def _locked(deployment: Deployment) -> Deployment:
    rows = Deployment.objects.select_for_update(of=("self",)).select_related("target", "base_model")
    row = rows.get(pk=deployment.pk)
    if not row.is_wanted:
        raise ConflictError(f"deployment {row.name} is being removed")
    return row


def _active(rollout: DeploymentRollout, *statuses: str) -> DeploymentRollout:
    """Return the rollout's current row under its deployment's lock, which every decision takes first."""
    row = _locked(rollout.deployment)
    found = DeploymentRollout.objects.get(pk=rollout.pk)
    if found.status not in statuses:
        raise ConflictError(f"this rollout is {found.status}, not {' or '.join(statuses)}")
    found.deployment = row
    return found


def _is_update_sent(rollout: DeploymentRollout) -> bool:
    """Return True if SageMaker has accepted the update."""
    whole = rollout.deployment.hosting == Deployment.Hosting.ENDPOINT
    action = _ENDPOINT_UPDATE_ACTION if whole else _UPDATE_ACTION
    steps = rollout.deployment.steps.filter(action=action, at__gte=rollout.turned_at)
    return steps.filter(outcome="done", resource=f"gw-{rollout.deployment.name}").exists()


def _with_shares(policy: RolloutPolicy, strategy: str) -> RolloutPolicy:
    if strategy == Strategy.CANARY:
        policy = replace(policy, shares=policy.shares or SHARES)
        steps = len(policy.shares) + 1
        if steps * policy.wait_seconds >= policy.max_seconds:
            raise InvalidInputError(
                f"{steps} steps of {policy.wait_seconds:g} s exceed max_seconds,"
                f" {policy.max_seconds:g}, and would be rolled back: lower wait_seconds, or raise"
                " max_seconds",
                field="policy.wait_seconds",
            )
        return policy
    if policy.shares:
        raise InvalidInputError("shares is valid only for strategy canary", field="policy.shares")
    return policy


def _only_canary(deployment: Deployment) -> None:
    """Raise ConflictError if the base model has another canary; its row is the lock."""
    base = BaseModel.objects.select_for_update().get(pk=deployment.base_model_id)
    others = DeploymentRollout.objects.filter(
        deployment__base_model=base, strategy=Strategy.CANARY, status__in=DeploymentRollout.ACTIVE
    )
    if (other := others.select_related("deployment").first()) is not None:
        raise ConflictError(f"{other} is a canary of the same base model: wait until it ends, or abort it")


def _servers(deployment: Deployment, state: Mapping[str, Any]) -> list[str]:
    if deployment.target.kind != Target.Kind.OPENAI_HTTP:
        return []
    return list(state["urls"] or deployment.target.urls)


def _check_batch_size(policy: RolloutPolicy, deployment: Deployment) -> None:
    """Check the batch size: SageMaker takes 5 to 50 % of the copies, or a single copy."""
    if deployment.target.kind != Target.Kind.SAGEMAKER:
        return
    most = max(deployment.min_copies // 2, 1)
    if policy.batch_copies > most:
        text = f"batch_copies on SageMaker must be at most half of the copies, here {most}"
        raise InvalidInputError(text, field="policy.batch_copies")
