"""REST routes of optimization by name, and the permission that each method needs."""

from __future__ import annotations

from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.optimization.models import Assessment, ComparisonRun, OptimizationJob, PromptSet

STAFF = "staff"
OPTIMIZATION_ROUTES: dict[str, dict[str, str]] = {
    "prompt-sets": {"get": STAFF, "post": STAFF},
    "prompt-set": {"get": STAFF, "delete": STAFF},
    "optimization-presets": {"get": STAFF},
    "jumpstart-models": {"get": STAFF},
    "optimization-checks": {"post": STAFF},
    "optimizations": {"get": STAFF, "post": STAFF},
    "optimization": {"get": STAFF, "delete": STAFF},
    "optimization-cancel": {"post": STAFF},
    "optimization-deploy": {"post": STAFF},
    "optimization-take-back": {"post": STAFF},
    "optimization-result": {"get": STAFF},
    "optimization-events": {"get": STAFF},
    "assessments": {"get": STAFF},
    "benchmarks": {"post": STAFF},
    "recommendations": {"post": STAFF},
    "assessment": {"get": STAFF, "delete": STAFF},
    "assessment-cancel": {"post": STAFF},
    "assessment-events": {"get": STAFF},
    "comparisons": {"get": STAFF, "post": STAFF},
    "comparison": {"get": STAFF, "delete": STAFF},
    "comparison-cancel": {"post": STAFF},
    "comparison-result": {"get": STAFF},
    "comparison-events": {"get": STAFF},
}


def optimization_values(base_model: BaseModel) -> dict[str, str]:
    """Create the rows that the routes' paths name; return the path parameters."""
    prompts = PromptSet.objects.create(pk="0" * 64, name="p", lines=1, size=1)
    ended = timezone.now()
    job = OptimizationJob.objects.create(
        base_model=base_model,
        machine="cpu",
        checkpoint_sha256="0" * 64,
        recipe={"quantization": "none"},
        recipe_sha256="1" * 64,
        engine="local",
        identity="2" * 64,
        variant_name="v",
        status="failed",
        ended_at=ended,
    )
    comparison = ComparisonRun.objects.create(
        base_model=base_model,
        machine="cpu",
        identity="3" * 64,
        status="failed",
        ended_at=ended,
        arms=[{"name": "original", "variant": ""}, {"name": "again", "variant": ""}],
    )
    assessment = Assessment.objects.create(
        base_model=base_model, machine="aws", subject="benchmark", status="failed", ended_at=ended
    )
    return {
        "assessment": str(assessment.pk),
        "optimization": str(job.pk),
        "comparison": str(comparison.pk),
        "sha256": prompts.pk,
    }
