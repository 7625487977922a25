"""Celery's edge of idempotency."""

from __future__ import annotations

from celery import shared_task

from controlplane.platform.idempotency.services import answers_expire


@shared_task(name="idempotency.expire", acks_late=True)
def expire() -> None:
    """Delete expired responses."""
    answers_expire()
