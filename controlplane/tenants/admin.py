"""Tenants, users and keys for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.http.read_only_admin import ReadOnlyAdmin
from controlplane.tenants.models import ApiKey, Membership, Tenant, User


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


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("public_id", "tenant", "name", "scopes", "expires_at", "revoked_at")
    search_fields = ("public_id", "tenant__id")
    exclude = ("secret_sha256",)
