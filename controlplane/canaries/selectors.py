"""Reads of rollouts and of their usage."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.adapters.selectors import alias_change_newest
from controlplane.canaries.models import Rollout
from controlplane.canaries.statistics import Arm
from controlplane.errors import NotFoundError
from controlplane.metering.selectors import arm_attempts, latencies_ms

RECENT: Final = dt.timedelta(hours=1)
"""How far back a page counts a split's events, since it polls every few seconds."""
_MAX_LATENCIES: Final = 5000
"""Percentiles use at most this many of the newest latencies: more are no better, and take longer."""


@dataclass(frozen=True, slots=True)
class SplitTraffic:
    """Traffic of a split since `since`: (percent of callers, arm) per version, the one that stays first."""

    since: dt.datetime
    requests: int
    shares: list[tuple[int, Arm]]


def rollout_list(*, adapter: Adapter, alias: str | None = None) -> QuerySet[Rollout]:
    """List an alias's rollouts, or all the adapter's, newest first."""
    rollouts = Rollout.objects.filter(adapter=adapter).order_by("-pk")
    rollouts = rollouts.select_related("adapter", "stable__adapter", "canary__adapter")
    return rollouts if alias is None else rollouts.filter(alias=alias)


def rollout_active_aliases(*, adapter: Adapter) -> set[str]:
    """Return the names of the adapter's aliases with an active rollout."""
    active = Rollout.objects.filter(adapter=adapter, status__in=Rollout.ACTIVE)
    return set(active.values_list("alias", flat=True))


def rollout_get(*, adapter: Adapter, alias: str, number: int) -> Rollout:
    """Return the alias's rollout. Raises NotFoundError."""
    found = rollout_list(adapter=adapter, alias=alias).filter(pk=number).first()
    if found is None:
        raise NotFoundError(f"{adapter.name}@{alias} has no rollout {number}")
    return found


def rollouts_running() -> QuerySet[Rollout]:
    """List the running rollouts, which decide automatically."""
    rollouts = Rollout.objects.filter(status=Rollout.Status.RUNNING).order_by("pk")
    return rollouts.select_related("adapter", "stable__adapter", "canary__adapter")


def rollout_arms(*, rollout: Rollout) -> tuple[Arm, Arm]:
    """Return (stable, canary) with their usage since the current step began."""
    since = rollout.step_started_at
    return _arm(rollout.alias, rollout.stable, since), _arm(rollout.alias, rollout.canary, since)


def split_traffic(*, alias: Alias) -> SplitTraffic:
    """Return a split alias's traffic since its last change, for at most the last `RECENT`."""
    changed = alias_change_newest(adapter=alias.adapter, name=alias.name)
    recent = timezone.now() - RECENT
    since = max(recent, changed.created_at) if changed else recent
    arms = alias.arms.select_related("version__adapter")
    shares = [(arm.percent, _arm(alias.name, arm.version, since)) for arm in arms]
    return SplitTraffic(since, sum(arm.requests for _, arm in shares), shares)


def _arm(alias: str, version: AdapterVersion, since: dt.datetime) -> Arm:
    attempts = arm_attempts(
        tenant=version.adapter.tenant_id, alias=alias, adapter=version.engine_name, since=since
    )
    answered = attempts.filter(status="ok")
    latencies = latencies_ms(answered, most=_MAX_LATENCIES)
    # Cancelled requests and gateway shutdowns say nothing about the version.
    errors, ok = attempts.filter(status="error").count(), answered.count()
    return Arm(version.number, ok + errors, errors, latencies)
