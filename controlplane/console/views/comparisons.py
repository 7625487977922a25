"""The operator's pages of comparisons: which arms, how far it is, and what was measured."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.selectors import base_model_get
from controlplane.console.comparison_charts import HEIGHT, WIDTH, adapters, bars, frontier, ranked, samples
from controlplane.console.pages import field_errors, staff_page
from controlplane.console.views.optimizations import deployments_for, work_context
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.optimization.comparisons import comparison_create, comparison_remove
from controlplane.optimization.models import ComparisonRun
from controlplane.optimization.selectors import comparison_get, prompts_get, prompts_list
from controlplane.optimization.services import work_cancel

_FIELDS: Final = (
    "base_model", "name", "prompts", "texts", "concurrency", "max_tokens", "hour", "currency", "input",
    "output", "adapters",
)  # fmt: skip
_LONGEST: Final = {"adapters": 6000}

_TRACE: Final = "trace"
"""As `prompts`: prompts made to a service's lengths."""
_FACTS: Final = ("date", "cpu", "cores", "memory_gib", "kernel", "python", "gpu")


@require_http_methods(["GET", "POST"])
@staff_page
def new(request: HttpRequest) -> HttpResponse:
    """Which variants are measured beside the base."""
    sent = request.POST if request.method == "POST" else request.GET
    values = {name: sent.get(name, "").strip()[: _LONGEST.get(name, 200)] for name in _FIELDS}
    chosen, errors, trace = sent.getlist("variant"), {}, values["prompts"] == _TRACE
    if request.method == "POST":
        try:
            comparison, _made = comparison_create(
                base_model=base_model_get(name=values["base_model"]), name=values["name"],
                arms=_arms(chosen, again="again" in sent), settings=_settings(values, trace=trace),
                adapters=[{"engine_name": name} for name in values["adapters"].split()],
                prompts=prompts_get(sha256=values["prompts"]) if values["prompts"] and not trace else None,
                texts=prompts_get(sha256=values["texts"]) if values["texts"] else None,
            )  # fmt: skip
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="form")
        else:
            return redirect("console:staff-comparison", comparison=comparison.pk)
    base = BaseModel.objects.filter(name=values["base_model"]).first()
    context = {
        "values": values, "errors": errors, "bases": BaseModel.objects.order_by("name"), "base": base,
        "variants": base.variants.all() if base else [], "chosen": chosen, "again": "again" in sent,
        "prompt_sets": prompts_list()[:100], "trace": _TRACE,
    }  # fmt: skip
    return render(request, "staff/comparison_new.html", context, status=422 if errors else 200)


@require_GET
@staff_page
def detail(request: HttpRequest, comparison: int) -> HttpResponse:
    """One comparison, with what was measured once it is done."""
    return render(request, "staff/comparison.html", _context(comparison_get(pk=comparison)))


@require_GET
@staff_page
def status(request: HttpRequest, comparison: int) -> HttpResponse:
    """What of it changes by itself, asked for again while it does; the whole page once it has ended."""
    found = comparison_get(pk=comparison)
    if not found.is_open:
        return HttpResponse(status=204, headers={"HX-Redirect": f"/staff/comparisons/{found.pk}/"})
    return render(request, "staff/work_status.html", _context(found))


@require_POST
@staff_page
def act(request: HttpRequest, comparison: int) -> HttpResponse:
    """Cancels it, or forgets it."""
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
        **work_context(comparison), "comparison": comparison,
        "poll": f"/staff/comparisons/{comparison.pk}/status",
    }  # fmt: skip
    if not comparison.result:
        return context
    names = [arm["variant"] for arm in comparison.arms if arm["variant"]]
    variants = Variant.objects.filter(base_model=comparison.base_model, name__in=names)
    made = variants.filter(optimization__isnull=False).select_related("optimization").order_by("name")
    return context | {
        "rows": ranked(comparison.result), "bars": bars(comparison.result), "width": WIDTH, "height": HEIGHT,
        "adapters": adapters(comparison.result), "frontier": frontier(comparison.result),
        "samples": samples(comparison.result), "deployable": made,
        "machine": _machine(comparison.result.get("machine", {})),
        "rounds": comparison.result.get("rounds", {}),
        "deployments": deployments_for(comparison.base_model) if made else [],
    }  # fmt: skip


def _machine(facts: dict[str, Any]) -> dict[str, str]:
    return {name.replace("_", " "): str(facts[name]) for name in _FACTS if facts.get(name)}


def _arms(variants: list[str], *, again: bool) -> list[dict[str, str]]:
    arms = [{"variant": ""}, *({"variant": name} for name in variants)]
    return [*arms, {"variant": "", "name": "original again"}] if again else arms


def _settings(values: dict[str, str], *, trace: bool) -> dict[str, Any]:
    """Of the form's few; REST takes all of them."""
    load: dict[str, Any] = {"trace": "bundled", "most_prompt": 512} if trace else {}
    if values["adapters"]:
        load["adapters"] = True
    if values["concurrency"]:
        parts = values["concurrency"].replace(",", " ").split()
        if not all(part.isascii() and part.isdigit() and 1 <= int(part[:5]) <= 256 for part in parts):
            raise InvalidInputError(
                _("give numbers of streams from 1 to 256, such as 1 4"), field="concurrency"
            )
        load["concurrency"] = sorted({int(part) for part in parts})
    if values["max_tokens"]:
        if not (
            values["max_tokens"].isascii()
            and values["max_tokens"].isdigit()
            and len(values["max_tokens"]) < 5
        ):
            raise InvalidInputError(_("give a whole number of tokens, up to 8192"), field="max_tokens")
        load["max_tokens"] = int(values["max_tokens"])
    found: dict[str, Any] = {"load": load} if load else {}
    if values["hour"]:
        found["price"] = {
            "hour": _money(values, "hour"), "currency": values["currency"][:3] or "USD",
        }  # fmt: skip
        if values["input"] or values["output"]:
            found["price"] |= {name: _money(values, name) for name in ("input", "output")}
    return found


def _money(values: dict[str, str], field: str) -> float:
    try:
        amount = float(values[field])
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e6:
        raise InvalidInputError(_("give an amount of money, such as 1.21"), field=field)
    return amount
