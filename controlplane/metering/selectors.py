"""Reads of usage."""

from __future__ import annotations

import datetime as dt

from django.db.models import QuerySet

from controlplane.metering.models import UsageRollup


def rollup_list(*, tenant: str, start: dt.date, end: dt.date) -> QuerySet[UsageRollup]:
    """A tenant's rollups of the UTC days `start` to `end`, both included."""
    return UsageRollup.objects.filter(tenant=tenant, day__range=(start, end))
