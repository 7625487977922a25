"""Reads of rollouts, and of the usage that they are judged by."""

from __future__ import annotations

from typing import Final

from django.db.models import QuerySet

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.errors import NotFoundError
from controlplane.metering.selectors import arm_attempts, latencies_ms
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.statistics import Arm

_MAX_LATENCIES: Final = 5000
"""The newest so many: a percentile of more is no better, and a look stays short."""


def rollout_list(*, adapter: Adapter, alias: str | None = None) -> QuerySet[Rollout]:
    """An alias's rollouts, or all the adapter's, newest first."""
    rollouts = Rollout.objects.filter(adapter=adapter).order_by("-pk")
    rollouts = rollouts.select_related("adapter", "stable__adapter", "canary__adapter")
    return rollouts if alias is None else rollouts.filter(alias=alias)


def rollout_get(*, adapter: Adapter, alias: str, number: int) -> Rollout:
    """Raises NotFoundError."""
    found = rollout_list(adapter=adapter, alias=alias).filter(pk=number).first()
    if found is None:
        raise NotFoundError(f"{adapter.name}@{alias} has no rollout {number}")
    return found


def rollouts_running() -> QuerySet[Rollout]:
    """Every rollout that decides by itself."""
    rollouts = Rollout.objects.filter(status=Rollout.Status.RUNNING).order_by("pk")
    return rollouts.select_related("adapter", "stable__adapter", "canary__adapter")


def rollout_arms(*, rollout: Rollout) -> tuple[Arm, Arm]:
    """(stable, canary) as usage tells them since the present step began."""
    return _arm(rollout, rollout.stable), _arm(rollout, rollout.canary)


def _arm(rollout: Rollout, version: AdapterVersion) -> Arm:
    attempts = arm_attempts(
        tenant=rollout.adapter.tenant_id,
        alias=rollout.alias,
        adapter=version.engine_name,
        since=rollout.step_started_at,
    )
    answered = attempts.filter(status="ok")
    latencies = latencies_ms(answered, most=_MAX_LATENCIES)
    # What a client broke off, or a gateway's stop, says nothing about the version.
    errors, ok = attempts.filter(status="error").count(), answered.count()
    return Arm(version.number, ok + errors, errors, latencies)
