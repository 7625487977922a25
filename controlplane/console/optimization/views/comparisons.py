"""The operator's pages of comparisons: the arms, the progress and the measurements."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.billing.reports.models import Plan
from controlplane.catalog.selectors import base_model_find, base_model_get, base_model_list
from controlplane.console.optimization.comparison_charts import (
    HEIGHT,
    WIDTH,
    adapters,
    bars,
    frontier,
    ranked,
    samples,
    sweep,
)
from controlplane.console.optimization.comparison_form import (
    SCORERS,
    TRACE,
    arms_asked,
    form_values,
    settings_asked,
)
from controlplane.console.optimization.views.optimizations import deployments_for, work_context
from controlplane.console.pages import field_errors, staff_page
from controlplane.errors import ControlPlaneError
from controlplane.optimization.comparisons import comparison_create, comparison_remove
from controlplane.optimization.instance_rates import rates_of
from controlplane.optimization.models import ComparisonRun
from controlplane.optimization.selectors import comparison_get, comparison_variants, prompts_get, prompts_list
from controlplane.optimization.services import work_cancel

_FACTS: Final = ("date", "cpu", "cores", "memory_gib", "kernel", "python", "gpu")


@require_http_methods(["GET", "POST"])
@staff_page
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form that selects variants to compare with the base model."""
    sent = request.POST if request.method == "POST" else request.GET
    values = form_values(sent)
    chosen, errors = sent.getlist("variant"), dict[str, str]()
    own_prompts = values["prompts"] if values["prompts"] != TRACE else ""
    if request.method == "POST":
        try:
            comparison, _made = comparison_create(
                base_model=base_model_get(name=values["base_model"]),
                name=values["name"],
                arms=arms_asked(chosen, again="again" in sent),
                settings=settings_asked(values, request.FILES.get("trace")),
                adapters=[{"engine_name": name} for name in values["adapters"].split()],
                prompts=prompts_get(sha256=own_prompts) if own_prompts else None,
                texts=prompts_get(sha256=values["texts"]) if values["texts"] else None,
            )
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="form")
        else:
            return redirect("console:staff-comparison", comparison=comparison.pk)
    base = base_model_find(name=values["base_model"])
    context = {
        "values": values,
        "errors": errors,
        "bases": base_model_list(),
        "base": base,
        "variants": base.variants.all() if base else [],
        "chosen": chosen,
        "again": "again" in sent,
        "prompt_sets": prompts_list()[:100],
        "trace": TRACE,
        "scorers": SCORERS,
        "plans": Plan.choices,
    }
    return render(request, "staff/comparison_new.html", context, status=422 if errors else 200)


@require_GET
@staff_page
def detail(request: HttpRequest, comparison: int) -> HttpResponse:
    """Show one comparison, with its measurements once it is done."""
    return render(request, "staff/comparison.html", _context(comparison_get(pk=comparison)))


@require_GET
@staff_page
def status(request: HttpRequest, comparison: int) -> HttpResponse:
    """Show the changing part, polled while the comparison runs; then redirect to its page."""
    found = comparison_get(pk=comparison)
    if not found.is_open:
        return HttpResponse(status=204, headers={"HX-Redirect": f"/staff/comparisons/{found.pk}/"})
    return render(request, "staff/work_status.html", _context(found))


@require_POST
@staff_page
def act(request: HttpRequest, comparison: int) -> HttpResponse:
    """Cancel or delete the comparison."""
    found = comparison_get(pk=comparison)
    try:
        if request.POST.get("action") == "remove":
            comparison_remove(comparison=found)
            return redirect("console:staff-optimizations")
        work_cancel(work=found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    return redirect("console:staff-comparison", comparison=comparison)


def _context(comparison: ComparisonRun) -> dict[str, Any]:
    context = {
        **work_context(comparison),
        "comparison": comparison,
        "poll": f"/staff/comparisons/{comparison.pk}/status",
        "rates": _rates(comparison),
    }
    if not comparison.result:
        return context
    made = comparison_variants(comparison=comparison)
    return context | {
        "rows": ranked(comparison.result),
        "bars": bars(comparison.result),
        "width": WIDTH,
        "height": HEIGHT,
        "adapters": adapters(comparison.result),
        "frontier": frontier(comparison.result),
        "samples": samples(comparison.result),
        "sweep": sweep(comparison.result),
        "deployable": made,
        "machine": _machine(comparison.result.get("machine", {})),
        "rounds": comparison.result.get("rounds", {}),
        "deployments": deployments_for(comparison.base_model) if made else [],
    }


def _rates(comparison: ComparisonRun) -> list[dict[str, Any]]:
    """Return the rows of the price table that the comparison's prices come from."""
    return [
        rate
        | {"plan": Plan(rate["plan"]).label, "effective_from": dt.date.fromisoformat(rate["effective_from"])}
        for rate in rates_of(comparison.arms, comparison.settings)
    ]


def _machine(facts: dict[str, Any]) -> dict[str, str]:
    return {name.replace("_", " "): str(facts[name]) for name in _FACTS if facts.get(name)}
