"""The operator's pages of deployments: desired and observed state, and each step with its reason."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.canaries.sides import rollout_sides
from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.console.deployments.form import COMPUTE, FIELDS, OPTIONS, desired_values
from controlplane.console.deployments.instance_costs import copy_cost, instances_priced
from controlplane.console.deployments.scaling_form import FIELDS as SCALING_FIELDS
from controlplane.console.deployments.scaling_form import form_values, policy_values
from controlplane.console.pages import field_errors, staff_page
from controlplane.deployments.comparison import compare, observed_copies
from controlplane.deployments.containers.images import DEFAULT_IMAGE, IMAGES, Family
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.phases.forecast import forecast_of
from controlplane.deployments.phases.selectors import predictions_of, scale_up_list, warnings_of
from controlplane.deployments.phases.timeline import phase_names, predicted, timelines
from controlplane.deployments.placement.selectors import rule_list
from controlplane.deployments.rollouts.selectors import deployment_rollout_active, deployment_rollout_list
from controlplane.deployments.scaling.policy import Metric, Release, Routing
from controlplane.deployments.scaling.selectors import policy_of, scaling_of
from controlplane.deployments.selectors import (
    deployment_get,
    deployment_list,
    deployment_newest,
    placement_list,
    step_list,
    target_get,
    target_list,
)
from controlplane.deployments.services import (
    deployment_create,
    deployment_remove,
    deployment_retry,
    deployment_update,
    scaling_clear,
    scaling_set,
)
from controlplane.deployments.targets.services import target_create, target_remove
from controlplane.errors import ControlPlaneError

_SHOWN: Final = 50
_STEPS: Final = 20
"""Most steps on the page, which has its forms below them."""
_SCALE_UPS: Final = 10
_TARGET_FIELDS: Final = (
    "name",
    "kind",
    "region",
    "endpoint_url",
    "role_arn",
    "assume_role_arn",
    "store",
    "host",
    "address",
)


@require_GET
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """List deployments with their status."""
    rows = [(deployment, observed_copies(deployment)) for deployment in deployment_list()]
    return render(request, "console/deployments/index.html", {"deployments": rows})


@require_http_methods(["GET", "POST"])
@staff_page
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form of a new deployment."""
    values: dict[str, str] = {name: request.POST.get(name, "").strip() for name in (*FIELDS, *OPTIONS)}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            deployment = deployment_create(
                name=values["name"],
                target=target_get(name=values["target"]),
                base_model=base_model_get(name=values["base_model"]),
                hosting=values["hosting"],
                endpoint=values["endpoint"],
                **desired_values(values),
            )
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="form")
        else:
            return redirect("console:staff-deployment", deployment=deployment.name)
    named = {*FIELDS, *OPTIONS}
    errors = {field.replace(".", "-"): text for field, text in errors.items()}
    unplaced = [text for field, text in errors.items() if field not in named]
    context = {
        "values": values,
        "errors": errors,
        "compute": [values[name] for name in COMPUTE],
        "compute_errors": [errors.get(name, "") for name in COMPUTE],
        "form_error": " ".join(unplaced),
        "targets": target_list(),
        "bases": base_model_list(),
        "hostings": Deployment.Hosting.choices,
        "scopes": Deployment.Scope.choices,
        "images": IMAGES.values(),
        "default_image": DEFAULT_IMAGE,
        "families": list(Family),
        "instances": instances_priced(),
        "options": [(option, values[option.field]) for option in OPTIONS.values()],
    }
    return render(request, "console/deployments/new.html", context, status=422 if errors else 200)


@require_GET
@staff_page
def detail(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show one deployment, also while it is being removed."""
    text = request.GET.get("copies", "")
    copies = int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 4 else 1
    found = deployment_get(name=deployment)
    return render(request, "console/deployments/detail.html", _context(found, copies=max(1, copies)))


@require_GET
@staff_page
def status(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show the changing part, polled until it settles; a removed deployment redirects to the list."""
    found = deployment_newest(name=deployment)
    if found is not None and found.removed_at is not None:
        return HttpResponse(status=204, headers={"HX-Redirect": "/staff/deployments/"})
    return render(request, "console/deployments/status.html", _context(deployment_get(name=deployment)))


@require_POST
@staff_page
def change(request: HttpRequest, deployment: str) -> HttpResponse:
    """Change the number of copies and the adapter scope."""
    found = deployment_get(name=deployment)
    names = ("min_copies", "max_copies", "adapter_scope")
    try:
        values = desired_values({name: request.POST.get(name, "").strip() for name in names})
        deployment_update(deployment=found, **{name: values[name] for name in names if name in values})
    except ControlPlaneError as error:
        context = _context(found) | {"change_error": str(error)}
        return render(request, "console/deployments/detail.html", context, status=422)
    messages.success(request, _("Saved. The reconciler applies the change."))
    return redirect("console:staff-deployment", deployment=deployment)


@require_POST
@staff_page
def scaling(request: HttpRequest, deployment: str) -> HttpResponse:
    """Set a scaling policy, or remove it."""
    found = deployment_get(name=deployment)
    values = {name: request.POST.get(name, "").strip() for name in SCALING_FIELDS}
    try:
        if "off" in request.POST:
            scaling_clear(deployment=found)
        else:
            scaling_set(deployment=found, **policy_values(values))
    except ControlPlaneError as error:
        context = _context(found) | {"scaling_error": str(error), "scaling_values": values}
        return render(request, "console/deployments/detail.html", context, status=422)
    messages.success(request, _("Saved. The reconciler applies the change."))
    return redirect("console:staff-deployment", deployment=deployment)


@require_POST
@staff_page
def retry(request: HttpRequest, deployment: str) -> HttpResponse:
    """Reconcile the deployment now."""
    deployment_retry(deployment=deployment_get(name=deployment))
    return redirect("console:staff-deployment", deployment=deployment)


@require_POST
@staff_page
def remove(request: HttpRequest, deployment: str) -> HttpResponse:
    """Remove the deployment."""
    deployment_remove(deployment=deployment_get(name=deployment))
    messages.success(request, _("Removal started. The deployment leaves the routes now."))
    return redirect("console:staff-deployment", deployment=deployment)


@require_http_methods(["GET", "POST"])
@staff_page
def targets(request: HttpRequest) -> HttpResponse:
    """List the targets of deployments, and the form that adds one."""
    values = {name: request.POST.get(name, "").strip() for name in (*_TARGET_FIELDS, "urls")}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            target_create(**{name: values[name] for name in _TARGET_FIELDS}, urls=values["urls"].split())
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="name")
        else:
            return redirect("console:staff-targets")
    context = {
        "targets": target_list().prefetch_related("deployments"),
        "values": values,
        "errors": errors,
        "kinds": Target.Kind.choices,
    }
    return render(request, "console/deployments/targets.html", context, status=422 if errors else 200)


@require_POST
@staff_page
def target_delete(request: HttpRequest, target: str) -> HttpResponse:
    """Delete a target without deployments."""
    try:
        target_remove(target=target_get(name=target))
    except ControlPlaneError as error:
        messages.error(request, str(error))
    return redirect("console:staff-targets")


def _context(deployment: Deployment, *, copies: int = 1) -> dict[str, Any]:
    placements = placement_list(deployment=deployment)
    row = scaling_of(deployment)
    policy = policy_of(deployment, row)
    rolling = deployment_rollout_active(deployment=deployment)
    rules = list(rule_list(deployment=deployment)[:_SHOWN])
    placing = any(rule.status not in (rule.Status.READY, rule.Status.FAILED) for rule in rules)
    forecast = forecast_of(deployment)
    return {
        "policy": policy,
        "warnings": warnings_of(deployment),
        "asked_copies": copies,
        "predictions": predicted(predictions_of(deployment, copies=copies)),
        "forecast": forecast,
        "compared": compare(deployment),
        "phases": phase_names(),
        "timelines": timelines(list(scale_up_list(deployment=deployment)[:_SCALE_UPS])),
        "scaling": row if policy else None,
        "bounds_now": policy.bounds(timezone.now()) if policy else None,
        "scaling_values": form_values(policy),
        "scaling_metrics": list(Metric),
        "scaling_routings": list(Routing),
        "scaling_releases": list(Release),
        "deployment": deployment,
        "cost": copy_cost(deployment),
        "busy": not deployment.is_settled or rolling is not None or placing or forecast is not None,
        "tone": _TONES.get(Deployment.Status(deployment.status), "info"),
        "steps": step_list(deployment=deployment)[:_STEPS],
        "placements": placements[:_SHOWN],
        "rules": rules,
        "placed": placements.count(),
        "scopes": Deployment.Scope.choices,
        "rolling": rolling,
        "sides": [] if rolling is None else rollout_sides(rollout=rolling),
        "rollouts": deployment_rollout_list(deployment=deployment)[:5],
    }


_TONES: Final = {
    Deployment.Status.SERVING: "ok",
    Deployment.Status.DEGRADED: "warn",
    Deployment.Status.FAILED: "danger",
}
