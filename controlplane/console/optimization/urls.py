"""URLs of optimization jobs, comparisons and assessments."""

from __future__ import annotations

from typing import Final

from django.urls import path

from controlplane.console.optimization.views import assessments, comparisons, optimizations

_JOB: Final = "staff/optimizations/<int:optimization>/"
_ASSESSMENT: Final = "staff/assessments/<int:assessment>/"
_COMPARISON: Final = "staff/comparisons/<int:comparison>/"

urls = [
    path("staff/optimizations/", optimizations.index, name="staff-optimizations"),
    path("staff/optimizations/new", optimizations.new, name="staff-optimization-new"),
    path("staff/optimizations/check", optimizations.check, name="staff-optimization-check"),
    path(_JOB, optimizations.detail, name="staff-optimization"),
    path(f"{_JOB}status", optimizations.status, name="staff-optimization-status"),
    path(f"{_JOB}act", optimizations.act, name="staff-optimization-act"),
    path("staff/prompt-sets/", optimizations.prompt_sets, name="staff-prompt-sets"),
    path("staff/assessments/new", assessments.new, name="staff-assessment-new"),
    path(_ASSESSMENT, assessments.detail, name="staff-assessment"),
    path(f"{_ASSESSMENT}status", assessments.status, name="staff-assessment-status"),
    path(f"{_ASSESSMENT}act", assessments.act, name="staff-assessment-act"),
    path("staff/comparisons/new", comparisons.new, name="staff-comparison-new"),
    path(_COMPARISON, comparisons.detail, name="staff-comparison"),
    path(f"{_COMPARISON}status", comparisons.status, name="staff-comparison-status"),
    path(f"{_COMPARISON}act", comparisons.act, name="staff-comparison-act"),
]
