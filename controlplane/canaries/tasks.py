"""Celery's edge of rollouts."""

from __future__ import annotations

from celery import shared_task

from controlplane.canaries.decisions import rollouts_decide
from controlplane.canaries.judgement import deployment_rollouts_judge


@shared_task(name="canaries.decide", acks_late=True)
def decide() -> None:
    """Looks at every running rollout."""
    rollouts_decide()


@shared_task(name="canaries.judge", acks_late=True)
def judge() -> None:
    """Compares what new copies of deployments answer with what the others do."""
    deployment_rollouts_judge()
