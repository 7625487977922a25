"""Roles and their permissions. REST routes and pages state a `Permission`; GRANTS maps roles to them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class Permission(StrEnum):
    """A permission on a tenant's resources. A new kind of resource is added here and in GRANTS."""

    TENANT_READ = "tenant.read"
    TENANT_WRITE = "tenant.write"
    PROJECTS_READ = "projects.read"
    PROJECTS_WRITE = "projects.write"
    SERVICE_ACCOUNTS_READ = "service_accounts.read"
    SERVICE_ACCOUNTS_WRITE = "service_accounts.write"
    MEMBERS_READ = "members.read"
    MEMBERS_WRITE = "members.write"
    KEYS_READ = "keys.read"
    KEYS_WRITE = "keys.write"
    MODELS_READ = "models.read"
    ADAPTERS_READ = "adapters.read"
    ADAPTERS_WRITE = "adapters.write"
    INFERENCE_CALL = "inference.call"
    USAGE_READ = "usage.read"
    BILLING_READ = "billing.read"
    BILLING_WRITE = "billing.write"
    WEBHOOKS_READ = "webhooks.read"
    WEBHOOKS_WRITE = "webhooks.write"
    AUDIT_READ = "audit.read"
    PROMPTS_READ = "prompts.read"
    PROMPTS_WRITE = "prompts.write"


class Role(models.TextChoices):
    """Role of a member or a service account in a tenant."""

    OWNER = "owner", _("Owner")
    ADMIN = "admin", _("Admin")
    ENGINEER = "engineer", _("Engineer")
    BILLING = "billing", _("Billing")
    VIEWER = "viewer", _("Viewer")


_VIEWER: Final = frozenset(
    {
        Permission.TENANT_READ,
        Permission.PROJECTS_READ,
        Permission.MODELS_READ,
        Permission.ADAPTERS_READ,
        Permission.USAGE_READ,
    }
)
_BILLING: Final = frozenset(
    {
        Permission.TENANT_READ,
        Permission.PROJECTS_READ,
        Permission.MODELS_READ,
        Permission.USAGE_READ,
        Permission.BILLING_READ,
        Permission.BILLING_WRITE,
    }
)
_ENGINEER: Final = _VIEWER | {
    Permission.SERVICE_ACCOUNTS_READ,
    Permission.KEYS_READ,
    Permission.KEYS_WRITE,
    Permission.ADAPTERS_WRITE,
    Permission.INFERENCE_CALL,
    Permission.WEBHOOKS_READ,
    Permission.PROMPTS_READ,
}
_OWNER: Final = frozenset(Permission)

GRANTS: Final[Mapping[Role, frozenset[Permission]]] = MappingProxyType(
    {
        Role.OWNER: _OWNER,
        Role.ADMIN: _OWNER - {Permission.TENANT_WRITE},
        Role.ENGINEER: _ENGINEER,
        Role.BILLING: _BILLING,
        Role.VIEWER: _VIEWER,
    }
)
"""Permissions by role. Nobody can grant a role with permissions that they lack themselves."""
