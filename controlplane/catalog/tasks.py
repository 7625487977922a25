"""Celery's edge of the catalogue."""

from __future__ import annotations

from celery import shared_task

from controlplane.catalog.digests import digest_run, digests_resume


@shared_task(name="catalog.digest", acks_late=True)
def digest(base_model_id: int) -> None:
    """Compute a checkpoint's digests."""
    digest_run(base_model_id=base_model_id)


@shared_task(name="catalog.resume_digests", acks_late=True)
def resume_digests() -> None:
    """Enqueue digests with a lost message or worker again."""
    digests_resume()
