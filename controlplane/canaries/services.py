"""Starts rollouts and changes them by hand. Automatic decisions are in `decisions`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.adapters.aliases import alias_move, alias_split
from controlplane.adapters.models import Adapter, Alias
from controlplane.adapters.selectors import alias_change_newest, version_get
from controlplane.adapters.services import adapter_locked
from controlplane.canaries.models import Rollout, RolloutDecision
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.platform.audit.origin import current_origin
from controlplane.platform.audit.services import audit_record

Kind = RolloutDecision.Kind
Status = Rollout.Status
DEFAULT_STEPS: Final = (5, 25, 50)
_BOUNDS: Final = {
    "hold_seconds": (10, 30 * 86_400),
    "min_requests": (10, 100_000),
    "max_error_increase": (0.001, 0.5),
    "max_latency_ratio": (1.1, 100.0),
}


@transaction.atomic
def rollout_start(
    *,
    adapter: Adapter,
    alias: str,
    version: int,
    steps: Sequence[int] = DEFAULT_STEPS,
    hold_seconds: int = 600,
    min_requests: int = 100,
    max_error_increase: float = 0.02,
    max_latency_ratio: float | None = 1.5,
) -> Rollout:
    """Start a canary rollout: split an alias's callers by the first step; usage decides about the next.

    Args:
        steps: rising percentages; a final 100 may be omitted, since promotion follows the last step.
        max_latency_ratio: None judges by errors only.

    Raises:
        InvalidInputError: a value is out of bounds, or the steps do not rise.
        NotFoundError: there is no such alias or version.
        ConflictError: the alias is split, has a rollout, or has this version already; or it is not ready.
    """
    percents = _checked(
        steps,
        hold_seconds=hold_seconds,
        min_requests=min_requests,
        max_error_increase=max_error_increase,
        max_latency_ratio=max_latency_ratio,
    )
    adapter = adapter_locked(adapter)
    found = Alias.objects.filter(adapter=adapter, name=alias).select_related("version").first()
    if found is None:
        raise NotFoundError(f"adapter {adapter.name} has no alias {alias!r}: point it to the stable version")
    if found.arms.exists():
        raise ConflictError(f"{adapter.name}@{alias} is split: end the split, or its rollout, first")
    canary = version_get(adapter=adapter, number=version)
    if canary.pk == found.version_id:
        raise ConflictError(
            f"{adapter.name}@{alias} already points to version {version}: choose another version"
        )
    rollout = Rollout(
        adapter=adapter,
        alias=alias,
        stable=found.version,
        canary=canary,
        steps=percents,
        hold_seconds=hold_seconds,
        min_requests=min_requests,
        max_error_increase=max_error_increase,
        max_latency_ratio=max_latency_ratio,
        step_started_at=timezone.now(),
        created_by=_actor(),
    )
    rollout.change = _split(rollout, percents[0], f"canary of version {version}")
    try:
        with transaction.atomic():
            rollout.save()
    except IntegrityError as error:
        raise ConflictError(f"{adapter.name}@{alias} already has a rollout") from error
    _record(rollout, Kind.START, "")
    return rollout


@transaction.atomic
def rollout_pause(*, rollout: Rollout) -> Rollout:
    """Pause a rollout: it makes no decisions, and the split stays.

    Raises:
        ConflictError: the rollout is not running.
    """
    rollout = _locked(rollout, Status.RUNNING)
    return _settle(rollout, Status.PAUSED, Kind.PAUSE, "paused manually")


@transaction.atomic
def rollout_resume(*, rollout: Rollout) -> Rollout:
    """Resume a paused rollout; only requests from now on count.

    Raises:
        ConflictError: the rollout is not paused.
    """
    rollout = _locked(rollout, Status.PAUSED)
    rollout.step_started_at, rollout.figures = timezone.now(), None
    return _settle(rollout, Status.RUNNING, Kind.RESUME, "")


@transaction.atomic
def rollout_abort(*, rollout: Rollout) -> Rollout:
    """Abort a rollout: all callers get the stable version, unless the alias was changed by hand.

    Raises:
        ConflictError: it has ended.
    """
    rollout = _locked(rollout, Status.RUNNING, Status.PAUSED)
    if not is_superseded(rollout):
        rollout.change = _move(rollout, rollout.stable.number, "canary aborted")
    return _settle(rollout, Status.ABORTED, Kind.ABORT, "aborted manually")


@transaction.atomic
def rollout_promote(*, rollout: Rollout) -> Rollout:
    """Promote the canary to all callers, whatever the figures.

    Raises:
        ConflictError: it has ended, or the alias was moved by hand.
    """
    rollout = _locked(rollout, Status.RUNNING, Status.PAUSED)
    if is_superseded(rollout):
        raise ConflictError("the alias was changed manually: abort this rollout and start another one")
    rollout.change = _move(rollout, rollout.canary.number, "canary promoted manually")
    return _settle(rollout, Status.PROMOTED, Kind.PROMOTE, "promoted manually")


@transaction.atomic
def rollout_advance(*, rollout: Rollout, figures: dict[str, Any], reason: str) -> None:
    """Advance to the next step. The caller holds the adapter's and the rollout's locks."""
    rollout.step += 1
    rollout.step_started_at = rollout.looked_at = timezone.now()
    rollout.figures, rollout.reason = figures, reason[:1000]
    rollout.change = _split(rollout, rollout.percent, f"canary to {rollout.percent} %: {reason}")
    rollout.save()
    _record(rollout, Kind.ADVANCE, reason, figures)


@transaction.atomic
def rollout_end(
    *, rollout: Rollout, status: Rollout.Status, kind: str, figures: dict[str, Any], reason: str
) -> None:
    """End a rollout as promoted, rolled back or superseded. The caller holds the locks."""
    goal = {Status.PROMOTED: rollout.canary, Status.ROLLED_BACK: rollout.stable}.get(status)
    if goal is not None:
        rollout.change = _move(rollout, goal.number, f"canary {status.label.lower()}: {reason}")
    rollout.figures, rollout.looked_at = figures, timezone.now()
    rollout.status, rollout.reason, rollout.ended_at = status, reason[:1000], timezone.now()
    rollout.save()
    _record(rollout, kind, reason, figures)


def rollout_note(*, rollout: Rollout, figures: dict[str, Any], reason: str) -> None:
    """Save the figures of a judgement that led to no decision."""
    rollout.figures, rollout.looked_at, rollout.reason = figures, timezone.now(), reason[:1000]
    rollout.save(update_fields=["figures", "looked_at", "reason"])


def is_superseded(rollout: Rollout) -> bool:
    """Return True if the alias was changed since the rollout's last change. Needs the adapter's lock."""
    newest = alias_change_newest(adapter=rollout.adapter, name=rollout.alias)
    return newest is None or newest.pk != rollout.change


def _split(rollout: Rollout, percent: int, reason: str) -> int:
    """Give the canary `percent` of the callers; return the id of the alias's change."""
    arms = [(rollout.stable.number, 100 - percent), (rollout.canary.number, percent)]
    alias_split(adapter=rollout.adapter, name=rollout.alias, arms=arms, reason=reason[:1000])
    return _change(rollout)


def _move(rollout: Rollout, number: int, reason: str) -> int:
    """Give one version all callers; return the id of the alias's change."""
    alias_move(adapter=rollout.adapter, name=rollout.alias, number=number, reason=reason[:1000])
    return _change(rollout)


def _change(rollout: Rollout) -> int:
    newest = alias_change_newest(adapter=rollout.adapter, name=rollout.alias)
    assert newest is not None
    return newest.pk


def _locked(rollout: Rollout, *statuses: str) -> Rollout:
    """Lock the adapter, then the rollout, as every decision does; return the current row."""
    adapter_locked(rollout.adapter)
    rows = Rollout.objects.select_for_update(of=("self",)).select_related("adapter", "stable", "canary")
    locked = rows.get(pk=rollout.pk)
    if locked.status not in statuses:
        raise ConflictError(f"this rollout is {locked.status}, not {' or '.join(statuses)}")
    return locked


def _settle(rollout: Rollout, status: str, kind: str, reason: str) -> Rollout:
    rollout.status, rollout.reason = status, reason
    rollout.ended_at = None if rollout.is_active else timezone.now()
    rollout.save()
    _record(rollout, kind, reason)
    return rollout


def _record(rollout: Rollout, kind: str, reason: str, figures: dict[str, Any] | None = None) -> None:
    """Save a decision, and add it to the audit log."""
    percents = {Status.PROMOTED: 100, Status.ROLLED_BACK: 0, Status.ABORTED: 0}
    percent = percents.get(Status(rollout.status), rollout.percent)
    RolloutDecision.objects.create(
        rollout=rollout, kind=kind, percent=percent, figures=figures, reason=reason[:1000], by=_actor()
    )
    after = {"alias": rollout.alias, "version": rollout.canary.number, "percent": percent, "reason": reason}
    audit_record(
        tenant=rollout.adapter.tenant_id, action=f"rollout.{kind}", target=rollout, before=None, after=after
    )


def _actor() -> str:
    actor = current_origin().who()
    return (actor.name or f"{actor.kind} {actor.id}").strip()[:200]


def _checked(steps: Sequence[int], **values: float | None) -> list[int]:
    for name, value in values.items():
        least, most = _BOUNDS[name]
        if value is not None and not least <= value <= most:
            raise InvalidInputError(f"{name} must be from {least} to {most}, got {value}", field=name)
    percents = [step for step in steps if step != 100]
    rising = all(one < other for one, other in itertools.pairwise(steps))
    if not 1 <= len(percents) <= 20 or not rising or not 1 <= min(percents) <= max(percents) <= 99:
        raise InvalidInputError(
            "steps must be 1 to 20 increasing percentages from 1 to 99, such as 5, 25, 50", field="steps"
        )
    return percents
