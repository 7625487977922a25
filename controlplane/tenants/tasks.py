"""Celery's edge of tenants."""

from __future__ import annotations

from celery import shared_task
from django.core.management import call_command

from controlplane.tenants.services import api_keys_unroute_expired


@shared_task(name="tenants.tidy", acks_late=True)
def tidy() -> None:
    """Forgets what has expired: keys' routes, sessions."""
    api_keys_unroute_expired()
    call_command("clearsessions")
