"""REST routes of optimization; `controlplane.api_urls` has them among the others."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern

from controlplane.optimization import api as optimization
from controlplane.optimization import assessments_api as asked
from controlplane.optimization import comparisons_api as comparisons
from controlplane.platform.http.routes import route

OPTIMIZATION_ROUTES: Final[list[URLPattern]] = [
    route("prompt-sets", optimization.PromptSetsApi, "prompt-sets"),
    route("prompt-sets/<str:sha256>", optimization.PromptSetApi, "prompt-set"),
    route("optimization-presets", optimization.PresetsApi, "optimization-presets"),
    route("jumpstart-models", optimization.JumpStartModelsApi, "jumpstart-models"),
    route("optimization-checks", optimization.RecipeCheckApi, "optimization-checks"),
    route("optimizations", optimization.OptimizationsApi, "optimizations"),
    route("optimizations/<int:optimization>", optimization.OptimizationApi, "optimization"),
    route(
        "optimizations/<int:optimization>/cancel", optimization.OptimizationCancelApi, "optimization-cancel"
    ),
    route(
        "optimizations/<int:optimization>/deploy", optimization.OptimizationDeployApi, "optimization-deploy"
    ),
    route(
        "optimizations/<int:optimization>/take-back",
        optimization.OptimizationTakeBackApi,
        "optimization-take-back",
    ),
    route(
        "optimizations/<int:optimization>/result", optimization.OptimizationResultApi, "optimization-result"
    ),
    route(
        "optimizations/<int:optimization>/events", optimization.OptimizationEventsApi, "optimization-events"
    ),
    route("assessments", asked.AssessmentsApi, "assessments"),
    route("assessments/benchmarks", asked.BenchmarksApi, "benchmarks"),
    route("assessments/recommendations", asked.RecommendationsApi, "recommendations"),
    route("assessments/<int:assessment>", asked.AssessmentApi, "assessment"),
    route("assessments/<int:assessment>/cancel", asked.CancelApi, "assessment-cancel"),
    route("assessments/<int:assessment>/events", asked.EventsApi, "assessment-events"),
    route("comparisons", comparisons.ComparisonsApi, "comparisons"),
    route("comparisons/<int:comparison>", comparisons.ComparisonApi, "comparison"),
    route("comparisons/<int:comparison>/cancel", comparisons.ComparisonCancelApi, "comparison-cancel"),
    route("comparisons/<int:comparison>/result", comparisons.ComparisonResultApi, "comparison-result"),
    route("comparisons/<int:comparison>/events", comparisons.ComparisonEventsApi, "comparison-events"),
]
