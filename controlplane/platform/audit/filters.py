"""Filters of the audit log."""

from __future__ import annotations

import datetime as dt
from typing import Any

import django_filters as filters
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django_filters.fields import IsoDateTimeField

from controlplane.platform.audit.export import CONTENT_TYPES
from controlplane.platform.audit.models import AuditRecord

Records = QuerySet[AuditRecord]


class UtcField(IsoDateTimeField):  # type: ignore[misc]
    """A time converted to UTC: PostgreSQL accepts no offset beyond 16 hours."""

    def clean(self, value: Any) -> dt.datetime | None:
        found: dt.datetime | None = super().clean(value)
        try:
            return None if found is None else found.astimezone(dt.UTC)
        except OverflowError:
            raise ValidationError("the time must be between the years 1 and 9999", code="invalid") from None


class UtcFilter(filters.IsoDateTimeFilter):  # type: ignore[misc]
    field_class = UtcField


class AuditFilter(filters.FilterSet):  # type: ignore[misc]
    action = filters.CharFilter(
        method="by_action",
        help_text="Action, such as `api_key.rotate`, or `api_key.` for all actions on API keys.",
    )
    actor = filters.CharFilter(method="by_actor", help_text="A user's e-mail address, or a key's public ID.")
    target = filters.CharFilter(method="by_target", help_text="ID or name of the changed object.")
    since = UtcFilter("at", "gte")
    until = UtcFilter("at", "lt", help_text="End of the period, excluded.")

    def by_action(self, records: Records, name: str, value: str) -> Records:
        return records.filter(**{"action__startswith" if value.endswith(".") else "action": value})

    def by_actor(self, records: Records, name: str, value: str) -> Records:
        return records.filter(Q(actor_id=value) | Q(actor_name=value))

    def by_target(self, records: Records, name: str, value: str) -> Records:
        return records.filter(Q(target_id=value) | Q(target_name=value))


class FleetAuditFilter(AuditFilter):
    tenant = filters.CharFilter(method="by_tenant", help_text="Tenant; `-` for the platform's own log.")

    def by_tenant(self, records: Records, name: str, value: str) -> Records:
        return records.filter(tenant="" if value == "-" else value)


class _File(filters.FilterSet):  # type: ignore[misc]
    form = filters.ChoiceFilter(
        choices=[(form, form) for form in CONTENT_TYPES],
        method="as_it_is",
        help_text="File format; jsonl by default.",
    )

    def as_it_is(self, records: Records, name: str, value: str) -> Records:
        return records


class AuditFileFilter(AuditFilter, _File):
    """The filters of an export, and its file format."""


class FleetAuditFileFilter(FleetAuditFilter, _File):
    """The filters of an export, and its file format."""
