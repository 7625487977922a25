"""Celery's edge of uploads."""

from __future__ import annotations

from celery import shared_task

from controlplane.artifacts.uploads.services import uploads_expire


@shared_task(name="uploads.expire")
def expire() -> None:
    """Remove expired uploads that were never registered."""
    uploads_expire()
