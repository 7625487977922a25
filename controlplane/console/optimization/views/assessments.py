"""The operator's pages of SageMaker's AI benchmarks and recommendations."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.console.form_errors import FormErrors
from controlplane.console.optimization.views.optimizations import work_act, work_context, work_status
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Target
from controlplane.deployments.selectors import deployment_get, deployment_list, target_list
from controlplane.errors import InvalidInputError
from controlplane.optimization.assessments import (
    FRAMEWORKS,
    METRICS,
    assessment_remove,
    benchmark_create,
    recommendation_create,
)
from controlplane.optimization.models import Assessment
from controlplane.optimization.selectors import assessment_get, prompts_get, prompts_list

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


@staff_page("GET", "POST")
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form of a new benchmark or recommendation."""
    values = {name: request.POST.get(name, "").strip()[: _LONGEST.get(name, 200)] for name in _FIELDS}
    values["subject"] = values["subject"] or Assessment.Subject.BENCHMARK.value
    errors = FormErrors(request)
    if request.method == "POST":
        with errors:
            return redirect("console:staff-assessment", assessment=_create(values).pk)
    on_sagemaker = [item for item in deployment_list() if item.target.kind == Target.Kind.SAGEMAKER]
    context = {
        "values": values,
        "bases": base_model_list(),
        "deployments": on_sagemaker,
        "metrics": METRICS,
        "frameworks": FRAMEWORKS,
        "targets": target_list(kind=Target.Kind.SAGEMAKER),
        "prompt_sets": prompts_list()[:100],
    }
    return errors.render("staff/assessment_new.html", context)


@staff_page("GET")
def detail(request: HttpRequest, assessment: int) -> HttpResponse:
    """Show one assessment, with SageMaker's result once it is done."""
    return render(request, "staff/assessment.html", _context(assessment_get(pk=assessment)))


@staff_page("GET")
def status(request: HttpRequest, assessment: int) -> HttpResponse:
    """Show the changing part, polled while the assessment runs; then redirect to its page."""
    found = assessment_get(pk=assessment)
    return work_status(request, found, _context(found))


@staff_page("POST")
def act(request: HttpRequest, assessment: int) -> HttpResponse:
    """Cancel or delete the assessment."""
    found = assessment_get(pk=assessment)
    return work_act(request, found, lambda: assessment_remove(assessment=found), "console:staff-assessment")


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
    result, names = assessment.result or {}, _adapter_names(assessment)
    return {
        **work_context(assessment, "assessments"),
        "assessment": assessment,
        "result": result,
        "recommendations": [_row(item, names) for item in result.get("recommendations", [])],
    }


def _adapter_names(assessment: Assessment) -> dict[str, str]:
    """Return engine names by the adapters' ids in the request."""
    items = assessment.remote.get("options", {}).get("adapters", ())
    return {item["id"]: item.get("engine_name", item["id"]) for item in items}


def _row(item: dict[str, Any], adapters: dict[str, str]) -> dict[str, Any]:
    """Return one recommendation as a flat row."""
    deployment = item.get("DeploymentConfiguration", {})
    located = item.get("AdapterDetails", {}).get("S3Uris", [])
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
        "adapters": [adapters.get(one["AdapterId"], one["AdapterId"]) for one in located],
        "done": [one.get("OptimizationType", "") for one in item.get("OptimizationDetails", [])],
    }
