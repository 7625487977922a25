"""Celery's edge of adapters."""

from __future__ import annotations

from celery import shared_task

from controlplane.adapters.lifecycle import purge_expired
from controlplane.adapters.validation import validation_resume, version_validate


# Late acknowledgement: a worker that dies leaves the message, and the claim keeps a second run out.
@shared_task(name="adapters.validate", acks_late=True)
def validate(version_id: int) -> None:
    """Validate one version."""
    version_validate(version_id=version_id)


@shared_task(name="adapters.purge", acks_late=True)
def purge() -> None:
    """Purge adapters and versions whose grace time is over."""
    purge_expired()


@shared_task(name="adapters.resume_validation", acks_late=True)
def resume_validation() -> None:
    """Enqueue versions again whose validation was lost."""
    validation_resume()
