"""Price books for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.billing.models import Price, PriceBook
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(PriceBook)
class PriceBookAdmin(ReadOnlyAdmin):
    list_display = ("name", "currency", "is_default", "created_at")


@admin.register(Price)
class PriceAdmin(ReadOnlyAdmin):
    list_display = (
        "book",
        "base_model",
        "adapter",
        "effective_from",
        "input_nano",
        "cached_input_nano",
        "output_nano",
        "reasoning_nano",
    )
