"""Attempts' time for metering: each second of each attempt once."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from controlplane.optimization.models import Attempt


def attempts_unmetered() -> QuerySet[Attempt]:
    """Those under way, and those that have ended since the last look."""
    return Attempt.objects.filter(metered=False).order_by("pk")


def attempts_metered(*, subjects: Sequence[str]) -> None:
    """Their time is taken over, to its end: in the transaction that takes it."""
    Attempt.objects.filter(subject__in=subjects, ended_at__isnull=False).update(metered=True)
