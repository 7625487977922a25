"""The operator's page of consolidation: the plan, its execution and its progress."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.scaling.selectors import policy_of, scaling_of
from controlplane.deployments.selectors import deployment_get, step_list
from controlplane.fleet.adapters_seen_api import read_minutes
from controlplane.fleet.consolidation import consolidation_execute, consolidation_plan
from controlplane.fleet.consolidation_api import shown

_SHOWN: Final = 200


@staff_page("GET", "POST")
def plan(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show a dry run by the traffic of the last minutes; a POST executes it."""
    found = deployment_get(name=deployment)
    errors, text = FormErrors(request), request.GET.get("minutes", "15")
    if request.method == "POST":
        with errors:
            made, _traffic = consolidation_execute(deployment=found, minutes=read_minutes(text))
            done = _("%(count)s copies leave the routes and stop after their last requests.")
            messages.success(request, done % {"count": made.saved})
            return redirect("console:staff-deployment-consolidation", deployment=deployment)
    made_plan: dict[str, Any] | None = None
    with FormErrors(request) as unplanned:
        minutes = read_minutes(text)
        made_plan = shown(*consolidation_plan(deployment=found, minutes=minutes), minutes=minutes)
    error = errors.text or unplanned.text
    context = _status(found) | {"error": error, "minutes": text, "windows": (5, 15, 60)}
    if made_plan is not None:
        context |= {
            "plan": made_plan,
            "copies": _copies(made_plan),
            "moves": _moves(made_plan)[:_SHOWN],
            "executable": bool(made_plan["saved"]) and found.target.kind == Target.Kind.LOCAL,
        }
    return render(request, "console/deployments/consolidation.html", context, status=422 if error else 200)


@staff_page("GET")
def status(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show the progress, polled while copies start or stop."""
    context = _status(deployment_get(name=deployment))
    return render(request, "console/deployments/consolidation_status.html", context)


def _copies(made: dict[str, Any]) -> list[dict[str, Any]]:
    listed = [*made["keep"], *made["spare"]]
    return [
        {"id": copy, "keeps": copy in made["keep"], "load": made["load"].get(copy, 0.0)} for copy in listed
    ]


def _moves(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the adapters, those whose new streams move to other copies first."""
    rows = [item | {"moves": bool(set(item["copies"]) - set(item["to"]))} for item in made["adapters"]]
    return sorted(rows, key=lambda item: not item["moves"])


def _status(deployment: Deployment) -> dict[str, Any]:
    row = scaling_of(deployment)
    wanted = row.copies if row is not None and policy_of(deployment, row) else deployment.min_copies
    workers = [item for item in deployment.resources if item["kind"] == "worker"]
    return {
        "deployment": deployment,
        "wanted": wanted,
        "routed": deployment.copies.count(),
        "running": len(workers) if deployment.target.kind == Target.Kind.LOCAL else None,
        "busy": not deployment.is_settled or deployment.copies.count() > wanted,
        "done": step_list(deployment=deployment, action="consolidate")[:5],
    }
