"""Base models for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.catalog.models import BaseModel
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(BaseModel)
class BaseModelAdmin(ReadOnlyAdmin):
    list_display = ("name", "architecture", "max_model_len", "dtype", "source")
    exclude = ("modules", "sealed_hub_token")
