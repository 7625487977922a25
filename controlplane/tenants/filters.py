"""Filters of the lists of keys, projects, service accounts, tenants, users, members and invitations."""

from __future__ import annotations

import django_filters as filters
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.tenants.models import ApiKey
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import api_key_named


class ApiKeyFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter(method="by_name", help_text="Part of the name.")
    project = filters.CharFilter("project__slug", help_text="Slug.")
    service_account = filters.CharFilter("service_account__name", help_text="Name.")
    live = filters.BooleanFilter(method="by_life", help_text="Neither revoked nor expired.")

    def by_name(self, keys: QuerySet[ApiKey], name: str, value: str) -> QuerySet[ApiKey]:
        return api_key_named(keys, value)

    def by_life(self, keys: QuerySet[ApiKey], name: str, value: bool) -> QuerySet[ApiKey]:
        live = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
        return keys.filter(live if value else ~live)


class ProjectFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("name", "icontains", help_text="Part of the name.")
    archived = filters.BooleanFilter("archived_at", "isnull", exclude=True)


class ServiceAccountFilter(filters.FilterSet):  # type: ignore[misc]
    project = filters.CharFilter("project__slug", help_text="Slug.")
    disabled = filters.BooleanFilter("disabled_at", "isnull", exclude=True)


class TenantFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("name", "icontains", help_text="Part of the name.")
    suspended = filters.BooleanFilter("suspended_at", "isnull", exclude=True)


class UserFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("email", "icontains", help_text="Part of the e-mail address.")
    tenant = filters.CharFilter("memberships__tenant_id", help_text="Members of this tenant.")
    is_staff = filters.BooleanFilter("is_staff")


class MemberFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("user__email", "icontains", help_text="Part of the e-mail address.")
    role = filters.ChoiceFilter("role", choices=Role.choices)


class InvitationFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("email", "icontains", help_text="Part of the e-mail address.")
