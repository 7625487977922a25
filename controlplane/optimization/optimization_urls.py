"""REST routes of optimization; `controlplane.api_urls` has them among the others."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path

from controlplane.optimization import api as optimization
from controlplane.optimization import assessments_api as asked
from controlplane.optimization import comparisons_api as comparisons

OPTIMIZATION_ROUTES: Final[list[URLPattern]] = [
    path("prompt-sets", optimization.PromptSetsApi.as_view(), name="prompt-sets"),
    path("prompt-sets/<str:sha256>", optimization.PromptSetApi.as_view(), name="prompt-set"),
    path("optimization-presets", optimization.PresetsApi.as_view(), name="optimization-presets"),
    path("jumpstart-models", optimization.JumpStartModelsApi.as_view(), name="jumpstart-models"),
    path("optimization-checks", optimization.RecipeCheckApi.as_view(), name="optimization-checks"),
    path("optimizations", optimization.OptimizationsApi.as_view(), name="optimizations"),
    path("optimizations/<int:optimization>", optimization.OptimizationApi.as_view(), name="optimization"),
    path(
        "optimizations/<int:optimization>/cancel",
        optimization.OptimizationCancelApi.as_view(),
        name="optimization-cancel",
    ),
    path(
        "optimizations/<int:optimization>/deploy",
        optimization.OptimizationDeployApi.as_view(),
        name="optimization-deploy",
    ),
    path(
        "optimizations/<int:optimization>/take-back",
        optimization.OptimizationTakeBackApi.as_view(),
        name="optimization-take-back",
    ),
    path(
        "optimizations/<int:optimization>/result",
        optimization.OptimizationResultApi.as_view(),
        name="optimization-result",
    ),
    path(
        "optimizations/<int:optimization>/events",
        optimization.OptimizationEventsApi.as_view(),
        name="optimization-events",
    ),
    path("assessments", asked.AssessmentsApi.as_view(), name="assessments"),
    path("assessments/benchmarks", asked.BenchmarksApi.as_view(), name="benchmarks"),
    path("assessments/recommendations", asked.RecommendationsApi.as_view(), name="recommendations"),
    path("assessments/<int:assessment>", asked.AssessmentApi.as_view(), name="assessment"),
    path("assessments/<int:assessment>/cancel", asked.CancelApi.as_view(), name="assessment-cancel"),
    path("assessments/<int:assessment>/events", asked.EventsApi.as_view(), name="assessment-events"),
    path("comparisons", comparisons.ComparisonsApi.as_view(), name="comparisons"),
    path("comparisons/<int:comparison>", comparisons.ComparisonApi.as_view(), name="comparison"),
    path(
        "comparisons/<int:comparison>/cancel",
        comparisons.ComparisonCancelApi.as_view(),
        name="comparison-cancel",
    ),
    path(
        "comparisons/<int:comparison>/result",
        comparisons.ComparisonResultApi.as_view(),
        name="comparison-result",
    ),
    path(
        "comparisons/<int:comparison>/events",
        comparisons.ComparisonEventsApi.as_view(),
        name="comparison-events",
    ),
]
