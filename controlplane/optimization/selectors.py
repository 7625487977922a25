"""Reads of optimization jobs, comparisons and prompt sets."""

from __future__ import annotations

import datetime as dt

from django.db.models import QuerySet

from controlplane.catalog.models import Variant
from controlplane.errors import NotFoundError
from controlplane.optimization.models import (
    OPEN,
    Assessment,
    ComparisonRun,
    OptimizationJob,
    PromptSet,
    Status,
    Work,
    WorkEvent,
)


def job_list(*, unfinished: bool = False) -> QuerySet[OptimizationJob]:
    """List the jobs, or only the unfinished ones, newest first."""
    jobs = OptimizationJob.objects.select_related("base_model", "prompts", "variant", "artifact", "target")
    return (jobs.filter(status__in=OPEN) if unfinished else jobs).order_by("-pk")


def job_list_failed(*, since: dt.datetime) -> QuerySet[OptimizationJob]:
    """List the jobs that failed since then, newest first."""
    return job_list().filter(status=Status.FAILED, ended_at__gte=since)


def job_get(*, pk: int) -> OptimizationJob:
    """Return one row. Raises NotFoundError."""
    job = job_list().filter(pk=pk).first()
    if job is None:
        raise NotFoundError(f"optimization {pk} does not exist")
    return job


def comparison_list(*, unfinished: bool = False) -> QuerySet[ComparisonRun]:
    """List the comparisons, or only the unfinished ones, newest first."""
    runs = ComparisonRun.objects.select_related("base_model", "prompts")
    return (runs.filter(status__in=OPEN) if unfinished else runs).order_by("-pk")


def comparison_variants(*, comparison: ComparisonRun) -> QuerySet[Variant]:
    """List the compared variants that optimization jobs made, by name."""
    names = [arm["variant"] for arm in comparison.arms if arm["variant"]]
    variants = Variant.objects.filter(base_model=comparison.base_model, name__in=names)
    return variants.filter(optimization__isnull=False).select_related("optimization").order_by("name")


def comparison_get(*, pk: int) -> ComparisonRun:
    """Return one row. Raises NotFoundError."""
    comparison = comparison_list().filter(pk=pk).first()
    if comparison is None:
        raise NotFoundError(f"comparison {pk} does not exist")
    return comparison


def prompts_list() -> QuerySet[PromptSet]:
    """List the prompt sets, newest first."""
    return PromptSet.objects.order_by("-created_at", "sha256")


def prompts_get(*, sha256: str) -> PromptSet:
    """Return one row. Raises NotFoundError."""
    prompts = PromptSet.objects.filter(pk=sha256).first()
    if prompts is None:
        raise NotFoundError(
            f"prompt set {sha256[:80]!r} does not exist: upload it to /api/v1/prompt-sets first"
        )
    return prompts


def event_list(*, work: Work) -> QuerySet[WorkEvent]:
    """List the events of a work, newest first."""
    return WorkEvent.objects.filter(**{work.KIND: work}).order_by("-pk")


def assessment_list() -> QuerySet[Assessment]:
    """List SageMaker's benchmarks and recommendations, newest first."""
    return Assessment.objects.select_related("base_model", "prompts", "target").order_by("-pk")


def assessment_get(*, pk: int) -> Assessment:
    """Return one row. Raises NotFoundError."""
    assessment = assessment_list().filter(pk=pk).first()
    if assessment is None:
        raise NotFoundError(f"assessment {pk} does not exist")
    return assessment
