"""Reads of usage."""

from __future__ import annotations

import datetime as dt

from django.db.models import QuerySet

from controlplane.metering.models import UsageRollup


def rollup_list(*, tenant: str | None, start: dt.date, end: dt.date) -> QuerySet[UsageRollup]:
    """Rollups of the UTC days `start` to `end`, both included: a tenant's, or (None) all tenants'."""
    rollups = UsageRollup.objects.filter(day__range=(start, end))
    return rollups if tenant is None else rollups.filter(tenant=tenant)
