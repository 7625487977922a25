"""Celery's edge of optimization. One task a machine, so that each has a queue of its own."""

from __future__ import annotations

from celery import shared_task

from controlplane.optimization.artifacts import artifacts_collect
from controlplane.optimization.attempt import work_run
from controlplane.optimization.housekeeping import leftovers_collect
from controlplane.optimization.models import Assessment
from controlplane.optimization.queueing import works_sweep
from controlplane.optimization.sagemaker.assessment_turn import assessment_turn
from controlplane.optimization.sagemaker.turn import remote_turn


@shared_task(name="optimization.run_on_cpu", acks_late=True)
def run_on_cpu(kind: str, pk: int) -> None:
    """Run an attempt at a job or a comparison on this host's CPU."""
    work_run(kind=kind, pk=pk)
    leftovers_collect()


@shared_task(name="optimization.run_on_gpu", acks_late=True)
def run_on_gpu(kind: str, pk: int) -> None:
    """The same on one of this host's GPUs."""
    work_run(kind=kind, pk=pk)
    leftovers_collect()


@shared_task(name="optimization.look_at_sagemaker", acks_late=True)
def look_at_sagemaker(kind: str, pk: int) -> None:
    """Asks SageMaker for a job, or looks how far it is."""
    (assessment_turn if kind == Assessment.KIND else remote_turn)(pk=pk)


@shared_task(name="optimization.sweep", acks_late=True)
def sweep() -> None:
    """Finds works whose message or worker was lost, and those that waited for room."""
    works_sweep()


@shared_task(name="optimization.collect", acks_late=True)
def collect() -> None:
    """Removes artifacts that nothing needs."""
    artifacts_collect()
