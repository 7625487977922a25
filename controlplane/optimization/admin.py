"""Optimization for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.optimization.models import (
    Artifact,
    Assessment,
    Attempt,
    ComparisonRun,
    OptimizationJob,
    PromptSet,
)
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(OptimizationJob)
class OptimizationJobAdmin(ReadOnlyAdmin):
    list_display = ("pk", "base_model", "variant_name", "status", "percent", "host", "created_at")


@admin.register(ComparisonRun)
class ComparisonRunAdmin(ReadOnlyAdmin):
    list_display = ("pk", "base_model", "name", "status", "percent", "host", "created_at")


@admin.register(Assessment)
class AssessmentAdmin(ReadOnlyAdmin):
    list_display = ("pk", "subject", "base_model", "name", "status", "target", "created_at")


@admin.register(PromptSet)
class PromptSetAdmin(ReadOnlyAdmin):
    list_display = ("name", "lines", "size", "created_at")


@admin.register(Artifact)
class ArtifactAdmin(ReadOnlyAdmin):
    list_display = ("sha256", "state", "size", "needed_at")


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("subject", "base_model", "machine", "host", "started_at", "ended_at", "metered")
