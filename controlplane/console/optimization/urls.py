"""URLs of optimization jobs, comparisons and assessments."""

from __future__ import annotations

from django.urls import path

from controlplane.console.optimization.views import assessments, comparisons, optimizations

urls = [
    path("staff/optimizations/", optimizations.index, name="staff-optimizations"),
    path("staff/optimizations/new", optimizations.new, name="staff-optimization-new"),
    path("staff/optimizations/check", optimizations.check, name="staff-optimization-check"),
    path("staff/optimizations/<int:optimization>/", optimizations.detail, name="staff-optimization"),
    path(
        "staff/optimizations/<int:optimization>/status",
        optimizations.status,
        name="staff-optimization-status",
    ),
    path("staff/optimizations/<int:optimization>/act", optimizations.act, name="staff-optimization-act"),
    path("staff/prompt-sets/", optimizations.prompt_sets, name="staff-prompt-sets"),
    path("staff/assessments/new", assessments.new, name="staff-assessment-new"),
    path("staff/assessments/<int:assessment>/", assessments.detail, name="staff-assessment"),
    path("staff/assessments/<int:assessment>/status", assessments.status, name="staff-assessment-status"),
    path("staff/assessments/<int:assessment>/act", assessments.act, name="staff-assessment-act"),
    path("staff/comparisons/new", comparisons.new, name="staff-comparison-new"),
    path("staff/comparisons/<int:comparison>/", comparisons.detail, name="staff-comparison"),
    path("staff/comparisons/<int:comparison>/status", comparisons.status, name="staff-comparison-status"),
    path("staff/comparisons/<int:comparison>/act", comparisons.act, name="staff-comparison-act"),
]
