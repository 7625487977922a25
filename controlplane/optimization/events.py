"""The journal of jobs and comparisons."""

from __future__ import annotations

from controlplane.deployments.steps import actor_name
from controlplane.optimization.models import OptimizationJob, Work, WorkEvent


def event_add(work: Work, event: str, detail: str = "") -> None:
    """Adds an event, with its time and its actor."""
    key = "job_id" if isinstance(work, OptimizationJob) else "comparison_id"
    WorkEvent.objects.create(**{key: work.pk}, event=event, detail=detail[:4000], actor=actor_name())
