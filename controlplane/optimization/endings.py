"""What is written when an attempt begins, lives and ends, and when a work does."""

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
    """The work runs on this host from now on; the subject that its time is metered by."""
    now = timezone.now()
    claim.write(status=Status.RUNNING, reason="", host=host[:255], attempts=F("attempts") + 1)
    work = claim.row()
    if work.started_at is None:
        claim.write(started_at=now)
    subject = f"{work.KIND}-{work.pk}.{work.attempts}"
    Attempt.objects.create(
        subject=subject, base_model=work.base_model.name, machine=work.machine, host=host[:255],
        started_at=now, seen_at=now, instance_type=_instance_type(work),
    )  # fmt: skip
    return subject


def attempt_seen(subject: str) -> None:
    """It lives."""
    Attempt.objects.filter(subject=subject, ended_at=None).update(seen_at=timezone.now())


def attempt_end(subject: str) -> None:
    """It is over."""
    now = timezone.now()
    Attempt.objects.filter(subject=subject, ended_at=None).update(seen_at=now, ended_at=now)


def lost_close(work: Work) -> None:
    """Ends the attempts of processes that vanished, when they were seen last."""
    if attempts_close(work):
        event_add(work, "lost", f"the process at it on {work.host} vanished")


def attempts_close(work: Work) -> int:
    """Ends those of its attempts that have not ended, when they were seen last; how many."""
    mine = Attempt.objects.filter(subject__startswith=f"{work.KIND}-{work.pk}.", ended_at=None)
    return mine.update(ended_at=F("seen_at"))


@transaction.atomic
def work_end(
    claim: Claim, status: Status, reason: str, code: str, *, log: str | None = None, **values: Any
) -> None:
    """A work's end, in one transaction with what it leaves. Raises ClaimLostError."""
    kept = values if log is None else {**values, "log_tail": log}
    claim.write(
        status=status,
        reason=reason[:4000],
        error_code=code,
        eta_seconds=None,
        ended_at=timezone.now(),
        **kept,
    )
    work = claim.row()
    claim.release()
    event_add(work, status, reason)
    told = {"status": status, "error_code": code, "reason": reason[:500]}
    audit_record(tenant="", action=f"{work._meta.model_name}.{_VERBS[status]}", target=work, after=told)


_VERBS: Final = {Status.DONE: "done", Status.FAILED: "fail", Status.CANCELLED: "cancelled"}


def _instance_type(work: Work) -> str:
    if not isinstance(work, OptimizationJob):
        return ""
    return str(work.recipe.get("target", {}).get("instance_type", ""))[:40]
