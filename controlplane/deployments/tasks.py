"""Celery tasks of deployments."""

from __future__ import annotations

from celery import shared_task

from controlplane.deployments.autoscaler.controller import scale_all
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.scheduling import deployments_sweep


@shared_task(name="deployments.reconcile", acks_late=True)
def reconcile(deployment_id: int) -> None:
    """Reconcile one deployment if it is due."""
    deployment_reconcile(deployment_id=deployment_id, due=True)


@shared_task(name="deployments.sweep", acks_late=True)
def sweep() -> None:
    """Enqueue the deployments that are due."""
    deployments_sweep()


@shared_task(name="deployments.scale", acks_late=True)
def scale() -> None:
    """Scale local deployments by their load."""
    scale_all()
