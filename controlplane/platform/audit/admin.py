"""The audit log for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.platform.audit.models import AuditChain, AuditRecord
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(AuditRecord)
class AuditRecordAdmin(ReadOnlyAdmin):
    list_display = ("at", "tenant", "actor_kind", "actor_name", "action", "target_name", "address")
    list_filter = ("actor_kind", "action", "at")
    search_fields = ("=tenant", "=actor_id", "=actor_name", "=target_id", "=target_name", "=request_id")
    show_full_result_count = False


@admin.register(AuditChain)
class AuditChainAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "number", "sha256", "pruned_through")
    search_fields = ("=tenant",)
