"""Celery's edge of kept prompts."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from controlplane.metering.prompt_log.services import prompts_expire, prompts_take


@shared_task(name="prompt_log.take", acks_late=True)
def take() -> int:
    """Writes down what gateways have sealed since; returns how many were new."""
    return prompts_take(redis_url=settings.GRAFTWORK.redis_url)


@shared_task(name="prompt_log.expire", acks_late=True)
def expire() -> int:
    """Deletes what is older than its tenant wants it kept; returns how many."""
    return prompts_expire()
