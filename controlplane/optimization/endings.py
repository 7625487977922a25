"""Records the begin, heartbeat and end of attempts, and the end of works."""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.optimization.claims import Claim
from controlplane.optimization.events import event_add
from controlplane.optimization.models import Attempt, OptimizationJob, Status, Work
from controlplane.platform.audit.services import audit_record


@transaction.atomic
def attempt_begin(claim: Claim, *, host: str) -> str:
    """Mark the work as running on `host`; return the subject under which its time is metered."""
    now = timezone.now()
    claim.write(status=Status.RUNNING, reason="", host=host[:255], attempts=F("attempts") + 1)
    work = claim.row()
    if work.started_at is None:
        claim.write(started_at=now)
    subject = f"{work.KIND}-{work.pk}.{work.attempts}"
    Attempt.objects.create(
        subject=subject,
        base_model=work.base_model.name,
        machine=work.machine,
        host=host[:255],
        started_at=now,
        seen_at=now,
        instance_type=_instance_type(work),
    )
    return subject


def attempt_seen(subject: str) -> None:
    """Record that the attempt is alive."""
    Attempt.objects.filter(subject=subject, ended_at=None).update(seen_at=timezone.now())


def attempt_end(subject: str) -> None:
    """Record that the attempt is over."""
    now = timezone.now()
    Attempt.objects.filter(subject=subject, ended_at=None).update(seen_at=now, ended_at=now)


def lost_close(work: Work) -> None:
    """Close the attempts of vanished processes at their last heartbeat, and add an event."""
    if attempts_close(work):
        event_add(work, "lost", f"its process on {work.host} vanished")


def attempts_close(work: Work) -> int:
    """Close the work's open attempts at their last heartbeat; return how many."""
    attempts = Attempt.objects.filter(subject__startswith=f"{work.KIND}-{work.pk}.", ended_at=None)
    return attempts.update(ended_at=F("seen_at"))


@transaction.atomic
def work_end(
    claim: Claim, status: Status, reason: str, code: str, *, log: str | None = None, **values: Any
) -> None:
    """End a work and write its result in one transaction. Raises ClaimLostError."""
    fields = values if log is None else {**values, "log_tail": log}
    claim.write(
        status=status,
        reason=reason[:4000],
        error_code=code,
        eta_seconds=None,
        ended_at=timezone.now(),
        **fields,
    )
    work = claim.row()
    claim.release()
    event_add(work, status, reason)
    after = {"status": status, "error_code": code, "reason": reason[:500]}
    audit_record(tenant="", action=f"{work._meta.model_name}.{_VERBS[status]}", target=work, after=after)


_VERBS: Final = {Status.DONE: "done", Status.FAILED: "fail", Status.CANCELLED: "cancelled"}


def _instance_type(work: Work) -> str:
    if not isinstance(work, OptimizationJob):
        return ""
    return str(work.recipe.get("target", {}).get("instance_type", ""))[:40]
