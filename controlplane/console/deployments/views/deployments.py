"""The operator's pages of deployments: desired and observed state, and each step with its reason."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.canaries.sides import rollout_sides
from controlplane.catalog.selectors import base_model_get, base_model_list, variant_list_all
from controlplane.console.deployments.form import COMPUTE, FIELDS, OPTIONS, asked_of, defaults, nested
from controlplane.console.deployments.instance_costs import copy_cost, fallback_costs, instances_priced
from controlplane.console.deployments.scaling_form import FIELDS as SCALING_FIELDS
from controlplane.console.deployments.scaling_form import form_values, policy_values
from controlplane.console.form_errors import FormErrors, parsed
from controlplane.console.pages import staff_page
from controlplane.console.paging import CHOICES
from controlplane.deployments.comparison import compare, observed_copies
from controlplane.deployments.containers.images import DEFAULT_IMAGE, IMAGES, Family
from controlplane.deployments.models import Deployment
from controlplane.deployments.phases.forecast import forecast_of
from controlplane.deployments.phases.selectors import predictions_of, scale_up_list, warnings_of
from controlplane.deployments.phases.timeline import phase_names, predicted, timelines
from controlplane.deployments.placement.placements import unserved_adapters
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
from controlplane.deployments.serializers import DeploymentInput, DesiredInput
from controlplane.deployments.services import (
    deployment_create,
    deployment_remove,
    deployment_retry,
    deployment_update,
    scaling_clear,
    scaling_set,
)

_SHOWN: Final = 50
_STEPS: Final = 20
"""Most steps on the page, which has its forms below them."""
_SCALE_UPS: Final = 10
_CHANGED: Final = ("min_copies", "max_copies", "adapter_scope")


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """List deployments with their status."""
    rows = [(deployment, observed_copies(deployment)) for deployment in deployment_list()]
    return render(request, "console/deployments/index.html", {"deployments": rows})


@staff_page("GET", "POST")
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form of a new deployment."""
    # A link fills in fields by its query, such as a merged copy's page its variant and hosting.
    sent = request.POST if request.method == "POST" else request.GET
    values: dict[str, str] = {name: sent.get(name, "").strip() for name in (*FIELDS, *OPTIONS)}
    if request.method == "GET":
        values = defaults(values)
    errors = FormErrors(request)
    if request.method == "POST":
        with errors:
            target = target_get(name=values["target"])
            wanted = parsed(DeploymentInput, nested(asked_of(target.kind, values)))
            wanted["target"] = target
            wanted["base_model"] = base_model_get(name=wanted["base_model"])
            return redirect("console:staff-deployment", deployment=deployment_create(**wanted).name)
    placed = {field.replace(".", "-"): text for field, text in errors.items()}
    context = {
        "values": values,
        "errors": placed,
        "compute": [values[name] for name in COMPUTE],
        "compute_errors": [placed.get(name, "") for name in COMPUTE],
        "form_error": " ".join(text for field, text in placed.items() if field not in values),
        "targets": target_list(),
        "bases": base_model_list(),
        "variants": variant_list_all()[:CHOICES],
        "hostings": Deployment.Hosting.choices,
        "scopes": Deployment.Scope.choices,
        "images": [image for image in IMAGES.values() if not image.problem],
        "default_image": DEFAULT_IMAGE,
        "families": list(Family),
        "instances": instances_priced(),
        "options": [(option, values[option.field]) for option in OPTIONS.values()],
    }
    return errors.render("console/deployments/new.html", context)


@staff_page("GET")
def detail(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show one deployment, also while it is being removed."""
    text = request.GET.get("copies", "")
    copies = int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 4 else 1
    found = deployment_get(name=deployment)
    return render(request, "console/deployments/detail.html", _context(found, copies=max(1, copies)))


@staff_page("GET")
def status(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show the changing part, polled until it settles; a removed deployment redirects to the list."""
    found = deployment_newest(name=deployment)
    if found is not None and found.removed_at is not None:
        return HttpResponse(status=204, headers={"HX-Redirect": "/staff/deployments/"})
    return render(request, "console/deployments/status.html", _context(deployment_get(name=deployment)))


@staff_page("POST")
def change(request: HttpRequest, deployment: str) -> HttpResponse:
    """Change the number of copies and the adapter scope."""
    found = deployment_get(name=deployment)
    values = {name: request.POST.get(name, "").strip() for name in _CHANGED}
    with FormErrors(request) as errors:
        sent = parsed(DesiredInput, values)
        deployment_update(deployment=found, **sent)
        messages.success(request, _("Saved. The reconciler applies the change."))
        return redirect("console:staff-deployment", deployment=deployment)
    context = _context(found) | {"change": {"values": values, "errors": errors}}
    return errors.render("console/deployments/detail.html", context)


@staff_page("POST")
def scaling(request: HttpRequest, deployment: str) -> HttpResponse:
    """Set a scaling policy, or remove it."""
    found = deployment_get(name=deployment)
    values = {name: request.POST.get(name, "").strip() for name in SCALING_FIELDS}
    with FormErrors(request) as errors:
        if "off" in request.POST:
            scaling_clear(deployment=found)
        else:
            scaling_set(deployment=found, **policy_values(values))
        messages.success(request, _("Saved. The reconciler applies the change."))
        return redirect("console:staff-deployment", deployment=deployment)
    context = _context(found) | {"scaling_error": errors.text, "scaling_values": values}
    return errors.render("console/deployments/detail.html", context)


@staff_page("POST")
def retry(request: HttpRequest, deployment: str) -> HttpResponse:
    """Reconcile the deployment now."""
    deployment_retry(deployment=deployment_get(name=deployment))
    return redirect("console:staff-deployment", deployment=deployment)


@staff_page("POST")
def remove(request: HttpRequest, deployment: str) -> HttpResponse:
    """Remove the deployment."""
    deployment_remove(deployment=deployment_get(name=deployment))
    messages.success(request, _("Removal started. The deployment leaves the routes now."))
    return redirect("console:staff-deployment", deployment=deployment)


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
        "change": {"values": {name: getattr(deployment, name) for name in _CHANGED}, "errors": {}},
        "warnings": [*warnings_of(deployment), *filter(None, [unserved_adapters(deployment)])],
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
        "fallback_costs": fallback_costs(deployment),
        "busy": not deployment.is_settled or rolling is not None or placing or forecast is not None,
        "steps": step_list(deployment=deployment)[:_STEPS],
        "placements": placements[:_SHOWN],
        "rules": rules,
        "placed": placements.count(),
        "scopes": Deployment.Scope.choices,
        "rolling": rolling,
        "sides": [] if rolling is None else rollout_sides(rollout=rolling),
        "rollouts": deployment_rollout_list(deployment=deployment)[:5],
    }
