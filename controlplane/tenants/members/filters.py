"""Filters of the lists of members and invitations."""

from __future__ import annotations

import django_filters as filters

from controlplane.tenants.roles import Role


class MemberFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("user__email", "icontains", help_text="Part of the e-mail address.")
    role = filters.ChoiceFilter("role", choices=Role.choices)


class InvitationFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("email", "icontains", help_text="Part of the e-mail address.")
