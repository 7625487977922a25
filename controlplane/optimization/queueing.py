"""Enqueues works for Celery workers, and again when a message or its worker was lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.optimization.claims import work_model
from controlplane.optimization.models import OPEN, Machine, Status, Work
from controlplane.platform.queue import enqueue
from controlplane.platform.task_queues import ROUTES

TASKS: Final = {
    Machine.CPU: "optimization.run_on_cpu",
    Machine.GPU: "optimization.run_on_gpu",
    Machine.SAGEMAKER: "optimization.look_at_sagemaker",
}
KINDS: Final = ("job", "comparison", "assessment")
_AGAIN: Final = timedelta(seconds=60)
"""Messages expire after this time; the sweep then sends another."""


@transaction.atomic
def work_enqueue(work: Work) -> None:
    """Send one message to the queue of the work's machine, on commit."""
    type(work)._default_manager.filter(pk=work.pk).update(next_at=timezone.now() + _AGAIN)
    enqueue(TASKS[Machine(work.machine)], expires=_AGAIN.total_seconds(), kind=work.KIND, pk=work.pk)


def works_sweep() -> int:
    """Enqueue the due works that no process holds; return how many."""
    count, now = 0, timezone.now()
    for kind in KINDS:
        free = Q(lease_owner="") | Q(lease_until__lte=now)
        due = work_model(kind)._default_manager.filter(free, status__in=OPEN, next_at__lte=now)
        for work in due.order_by("next_at")[:100]:
            work_enqueue(work)
            count += 1
    return count


def queue_of(work: Work) -> str:
    """Return the Celery queue of the work's messages."""
    return ROUTES[TASKS[Machine(work.machine)]]["queue"]


def waits_for_worker(work: Work) -> bool:
    """Return True if the work has been queued for so long that no worker can be listening."""
    return work.status == Status.QUEUED and timezone.now() - work.created_at > 2 * _AGAIN
