"""Invitations for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.platform.http.read_only_admin import ReadOnlyAdmin
from controlplane.tenants.members.models import Invitation


@admin.register(Invitation)
class InvitationAdmin(ReadOnlyAdmin):
    list_display = ("email", "tenant", "role", "expires_at", "sent_at", "accepted_at", "revoked_at")
    search_fields = ("email", "tenant__id")
    exclude = ("nonce",)
