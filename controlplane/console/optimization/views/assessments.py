"""The operator's pages of SageMaker's AI benchmarks and recommendations."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.console.optimization.views.optimizations import work_context
from controlplane.console.pages import field_errors, staff_page
from controlplane.deployments.models import Target
from controlplane.deployments.selectors import deployment_get, deployment_list, target_list
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.optimization.assessments import (
    FRAMEWORKS,
    METRICS,
    assessment_remove,
    benchmark_create,
    recommendation_create,
)
from controlplane.optimization.models import Assessment
from controlplane.optimization.selectors import assessment_get, prompts_get, prompts_list
from controlplane.optimization.services import work_cancel

_FIELDS: Final = (
    "subject",
    "deployment",
    "base_model",
    "target",
    "workload",
    "prompts",
    "name",
    "metric",
    "weights",
    "framework",
    "instance_types",
    "adapters",
    "optimize",
)
_LONGEST: Final = {"workload": 20_000, "adapters": 3000, "weights": 1000}


@require_http_methods(["GET", "POST"])
@staff_page
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form of a new benchmark or recommendation."""
    values = {name: request.POST.get(name, "").strip()[: _LONGEST.get(name, 200)] for name in _FIELDS}
    values["subject"] = values["subject"] or Assessment.Subject.BENCHMARK.value
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            made = _create(values)
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="form")
        else:
            return redirect("console:staff-assessment", assessment=made.pk)
    on_sagemaker = [item for item in deployment_list() if item.target.kind == Target.Kind.SAGEMAKER]
    context = {
        "values": values,
        "errors": errors,
        "bases": base_model_list(),
        "deployments": on_sagemaker,
        "metrics": METRICS,
        "frameworks": FRAMEWORKS,
        "targets": target_list(kind=Target.Kind.SAGEMAKER),
        "prompt_sets": prompts_list()[:100],
    }
    return render(request, "staff/assessment_new.html", context, status=422 if errors else 200)


@require_GET
@staff_page
def detail(request: HttpRequest, assessment: int) -> HttpResponse:
    """Show one assessment, with SageMaker's result once it is done."""
    return render(request, "staff/assessment.html", _context(assessment_get(pk=assessment)))


@require_GET
@staff_page
def status(request: HttpRequest, assessment: int) -> HttpResponse:
    """Show the changing part, polled while the assessment runs; then redirect to its page."""
    found = assessment_get(pk=assessment)
    if not found.is_open:
        return HttpResponse(status=204, headers={"HX-Redirect": f"/staff/assessments/{found.pk}/"})
    return render(request, "staff/work_status.html", _context(found))


@require_POST
@staff_page
def act(request: HttpRequest, assessment: int) -> HttpResponse:
    """Cancel or delete the assessment."""
    found = assessment_get(pk=assessment)
    try:
        if request.POST.get("action") == "remove":
            assessment_remove(assessment=found)
            return redirect("console:staff-optimizations")
        work_cancel(work=found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    return redirect("console:staff-assessment", assessment=assessment)


def _create(values: dict[str, str]) -> Assessment:
    prompts = prompts_get(sha256=values["prompts"]) if values["prompts"] else None
    common: dict[str, Any] = {"workload": values["workload"], "prompts": prompts, "name": values["name"]}
    if values["subject"] == Assessment.Subject.BENCHMARK:
        return benchmark_create(deployment=deployment_get(name=values["deployment"]), **common)
    if not values["target"]:
        raise InvalidInputError(_("choose an account"), field="target")
    options = {
        "target": values["target"],
        "weights": values["weights"],
        "metric": values["metric"],
        "framework": values["framework"],
        "optimize": bool(values["optimize"]),
        "instance_types": values["instance_types"].replace(",", " ").split(),
        "adapters": values["adapters"].split(),
    }
    base_model = base_model_get(name=values["base_model"])
    return recommendation_create(base_model=base_model, values=options, **common)


def _context(assessment: Assessment) -> dict[str, Any]:
    result = assessment.result or {}
    return {
        **work_context(assessment),
        "assessment": assessment,
        "result": result,
        "recommendations": [_row(item) for item in result.get("recommendations", [])],
        "poll": f"/staff/assessments/{assessment.pk}/status",
    }


def _row(item: dict[str, Any]) -> dict[str, Any]:
    """Return one recommendation as a flat row."""
    deployment = item.get("DeploymentConfiguration", {})
    expected = [
        " ".join(
            str(part)
            for part in (one.get("Metric"), one.get("Stat"), one.get("Value"), one.get("Unit"))
            if part
        )
        for one in item.get("ExpectedPerformance", [])
    ]
    return {
        "text": item.get("RecommendationDescription", ""),
        "type": deployment.get("InstanceType", ""),
        "instances": deployment.get("InstanceCount"),
        "copies": deployment.get("CopyCountPerInstance"),
        "image": deployment.get("ImageUri", ""),
        "expected": expected,
        "done": [one.get("OptimizationType", "") for one in item.get("OptimizationDetails", [])],
    }
