"""Celery tasks of optimization: one task per kind of machine, so that each has its own queue."""

from __future__ import annotations

from celery import shared_task

from controlplane.optimization.artifacts import artifacts_collect
from controlplane.optimization.attempt import work_run
from controlplane.optimization.housekeeping import leftovers_collect
from controlplane.optimization.models import Assessment
from controlplane.optimization.queueing import works_sweep
from controlplane.optimization.sagemaker.assessment_poll import assessment_poll
from controlplane.optimization.sagemaker.optimization_poll import optimization_poll


@shared_task(name="optimization.run_on_cpu", acks_late=True)
def run_on_cpu(kind: str, pk: int) -> None:
    """Run an attempt at a job or a comparison on this host's CPU."""
    work_run(kind=kind, pk=pk)
    leftovers_collect()


@shared_task(name="optimization.run_on_gpu", acks_late=True)
def run_on_gpu(kind: str, pk: int) -> None:
    """Run an attempt at a job or a comparison on this host's GPUs."""
    work_run(kind=kind, pk=pk)
    leftovers_collect()


@shared_task(name="optimization.look_at_sagemaker", acks_late=True)
def look_at_sagemaker(kind: str, pk: int) -> None:
    """Create a job at SageMaker, or poll it."""
    (assessment_poll if kind == Assessment.KIND else optimization_poll)(pk=pk)


@shared_task(name="optimization.sweep", acks_late=True)
def sweep() -> None:
    """Enqueue works whose message or worker was lost, and works that waited for room."""
    works_sweep()


@shared_task(name="optimization.collect", acks_late=True)
def collect() -> None:
    """Remove unneeded artifacts."""
    artifacts_collect()
