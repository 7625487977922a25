"""Celery tasks of stored prompts."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from controlplane.metering.prompt_log.services import prompts_expire, prompts_take


@shared_task(name="prompt_log.take", acks_late=True)
def take() -> int:
    """Writes newly sealed prompts to the database; returns how many were new."""
    return prompts_take(redis_url=settings.GRAFTWORK.redis_url)


@shared_task(name="prompt_log.expire", acks_late=True)
def expire() -> int:
    """Deletes prompts older than their tenant's setting; returns how many."""
    return prompts_expire()
