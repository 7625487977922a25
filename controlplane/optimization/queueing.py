"""Works on their way to a Celery worker: once, and again when their message or their worker was lost."""

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
"""A message that nobody took by then has expired, and another one follows."""


@transaction.atomic
def work_enqueue(work: Work) -> None:
    """Sends it once to the queue of its machine."""
    type(work)._default_manager.filter(pk=work.pk).update(next_at=timezone.now() + _AGAIN)
    enqueue(TASKS[Machine(work.machine)], expires=_AGAIN.total_seconds(), kind=work.KIND, pk=work.pk)


def works_sweep() -> int:
    """Enqueues what is due and nobody is at; how many."""
    count, now = 0, timezone.now()
    for kind in KINDS:
        free = Q(lease_owner="") | Q(lease_until__lte=now)
        due = work_model(kind)._default_manager.filter(free, status__in=OPEN, next_at__lte=now)
        for work in due.order_by("next_at")[:100]:
            work_enqueue(work)
            count += 1
    return count


def queue_of(work: Work) -> str:
    """The Celery queue that its messages go to."""
    return ROUTES[TASKS[Machine(work.machine)]]["queue"]


def waits_for_worker(work: Work) -> bool:
    """Whether it has waited for longer than a worker that is there would have left it."""
    return work.status == Status.QUEUED and timezone.now() - work.created_at > 2 * _AGAIN
