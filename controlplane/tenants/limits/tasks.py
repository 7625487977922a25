"""Celery's edge of limits."""

from __future__ import annotations

from celery import shared_task

from controlplane.tenants.limits.services import key_limits_unroute_dead


@shared_task(name="limits.tidy", acks_late=True)
def tidy() -> None:
    """Forgets limits of keys that no longer work."""
    key_limits_unroute_dead()
