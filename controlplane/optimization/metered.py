"""Attempts whose time metering has to take over: each second of each attempt once."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from controlplane.optimization.models import Attempt


def attempts_unmetered() -> QuerySet[Attempt]:
    """List the running attempts, and the ended ones that are not fully metered yet."""
    return Attempt.objects.filter(metered=False).order_by("pk")


def attempts_metered(*, subjects: Sequence[str]) -> None:
    """Mark ended attempts as metered, in the transaction that takes over their time."""
    Attempt.objects.filter(subject__in=subjects, ended_at__isnull=False).update(metered=True)
