"""Tenants, users and keys for staff."""

from __future__ import annotations

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django.contrib import admin
from django.contrib.auth.models import Group

from controlplane.platform.http.read_only_admin import ReadOnlyAdmin
from controlplane.tenants.models import ApiKey, Membership, Project, ServiceAccount, Tenant, User


@admin.register(Tenant)
class TenantAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "created_at")
    search_fields = ("id", "name")
    exclude = ("cache_salt",)


@admin.register(User)
class UserAdmin(ReadOnlyAdmin):
    list_display = ("email", "is_staff", "is_active", "last_login")
    search_fields = ("email",)
    exclude = ("password",)


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin):
    list_display = ("user", "tenant", "role")
    list_filter = ("role",)


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    list_display = ("slug", "tenant", "name", "archived_at")
    search_fields = ("slug", "tenant__id")


@admin.register(ServiceAccount)
class ServiceAccountAdmin(ReadOnlyAdmin):
    list_display = ("name", "tenant", "project", "role", "disabled_at")
    search_fields = ("name", "tenant__id")
    list_filter = ("role",)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = (
        "public_id",
        "tenant",
        "project",
        "name",
        "scopes",
        "allowed_networks",
        "expires_at",
        "revoked_at",
    )
    search_fields = ("public_id", "tenant__id")
    exclude = ("secret_sha256", "old_secret_sha256")


# Changed by hand they would let staff in as anybody, unrecorded; their owners change them, logged in.
for model in (EmailAddress, Authenticator, SocialAccount, SocialApp, SocialToken, Group):
    admin.site.unregister(model)
