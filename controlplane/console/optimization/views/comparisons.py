"""The operator's pages of comparisons: the arms, the progress and the measurements."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from controlplane.billing.reports.models import Plan
from controlplane.catalog.selectors import base_model_find, base_model_get, base_model_list
from controlplane.console.form_errors import FormErrors
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
    comparison_asked,
    form_values,
    placed,
)
from controlplane.console.optimization.views.optimizations import (
    deployments_for,
    work_act,
    work_context,
    work_status,
)
from controlplane.console.pages import staff_page
from controlplane.optimization.comparisons import comparison_create, comparison_remove
from controlplane.optimization.instance_rates import rates_of
from controlplane.optimization.models import ComparisonRun
from controlplane.optimization.selectors import comparison_get, comparison_variants, prompts_get, prompts_list

_FACTS: Final = ("date", "cpu", "cores", "memory_gib", "kernel", "python", "gpu")


@staff_page("GET", "POST")
def new(request: HttpRequest) -> HttpResponse:
    """Show and handle the form that selects variants to compare with the base model."""
    sent = request.POST if request.method == "POST" else request.GET
    values = form_values(sent)
    chosen, again, errors = sent.getlist("variant"), "again" in sent, FormErrors(request)
    if request.method == "POST":
        with errors:
            asked = comparison_asked(values, chosen, request.FILES.get("trace"), again=again)
            sets = {name: prompts_get(sha256=asked[name]) for name in ("prompts", "texts") if name in asked}
            comparison, _made = comparison_create(
                base_model=base_model_get(name=asked["base_model"]),
                name=asked["name"],
                arms=asked["arms"],
                adapters=asked["adapters"],
                settings={name: asked[name] for name in ("load", "quality", "price") if name in asked},
                prompts=sets.get("prompts"),
                texts=sets.get("texts"),
            )
            return redirect("console:staff-comparison", comparison=comparison.pk)
    base = base_model_find(name=values["base_model"])
    context = {
        "values": values,
        "errors": placed(errors),
        "bases": base_model_list(),
        "base": base,
        "variants": base.variants.all() if base else [],
        "chosen": chosen,
        "again": again,
        "prompt_sets": prompts_list()[:100],
        "trace": TRACE,
        "scorers": SCORERS,
        "plans": Plan.choices,
    }
    return errors.render("staff/comparison_new.html", context)


@staff_page("GET")
def detail(request: HttpRequest, comparison: int) -> HttpResponse:
    """Show one comparison, with its measurements once it is done."""
    return render(request, "staff/comparison.html", _context(comparison_get(pk=comparison)))


@staff_page("GET")
def status(request: HttpRequest, comparison: int) -> HttpResponse:
    """Show the changing part, polled while the comparison runs; then redirect to its page."""
    found = comparison_get(pk=comparison)
    return work_status(request, found, _context(found))


@staff_page("POST")
def act(request: HttpRequest, comparison: int) -> HttpResponse:
    """Cancel or delete the comparison."""
    found = comparison_get(pk=comparison)
    return work_act(request, found, lambda: comparison_remove(comparison=found), "console:staff-comparison")


def _context(comparison: ComparisonRun) -> dict[str, Any]:
    context = {
        **work_context(comparison, "comparisons"),
        "comparison": comparison,
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
