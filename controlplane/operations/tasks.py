"""Celery tasks of operations."""

from __future__ import annotations

from celery import shared_task

from controlplane.operations.services import tenants_purge_due


@shared_task(name="operations.purge_tenants", acks_late=True)
def purge_tenants() -> None:
    """Purge tenants whose grace period is over."""
    tenants_purge_due()
