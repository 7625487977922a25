"""The operator's pages of the fleet: overview, one copy, adapters on copies, one adapter."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.adapters.selectors import adapter_base_model
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_get
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import staff_page
from controlplane.console.paging import searched
from controlplane.deployments.copies.services import copy_remove
from controlplane.deployments.models import Deployment
from controlplane.deployments.placement.selectors import demand_placeable, rule_list
from controlplane.deployments.selectors import copy_get, deployment_list_on
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.fleet.adapters_seen_api import read_minutes
from controlplane.fleet.api import read_page
from controlplane.fleet.overview import CopyState, Overview, copy_overview, fleet_overview
from controlplane.fleet.residency import adapter_row, residency_map

_WINDOWS: Final = (5, 15, 60)


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """List base models with their deployments and copies."""
    return render(request, "staff/fleet.html", _fleet(fleet_overview()))


@staff_page("GET")
def status(request: HttpRequest) -> HttpResponse:
    """Show the part that changes, for polling."""
    return render(request, "staff/fleet_status.html", _fleet(fleet_overview()))


@staff_page("GET", "POST")
def copy(request: HttpRequest, copy_id: str) -> HttpResponse:
    """Show one copy; a POST removes it from the routes, which a deployment's copy refuses."""
    found, errors = copy_get(copy_id=copy_id), FormErrors(request)
    if request.method == "POST":
        with errors:
            copy_remove(copy=found)
            done = _("%(copy)s leaves the routes. Running requests finish.")
            messages.success(request, done % {"copy": copy_id})
            return redirect("console:staff-fleet")
    at, seen, minutes = copy_overview(found)
    context = {
        "copy": seen,
        "at": at,
        "minutes": minutes,
        "base": found.base_model.name,
        "alone": found.base_model.copies.count() == 1,
    }
    if request.htmx:  # type: ignore[attr-defined]
        return render(request, "staff/fleet_copy_status.html", context)
    return errors.render("staff/fleet_copy.html", context, status=409)


@staff_page("GET")
def residency(request: HttpRequest, name: str) -> HttpResponse:
    """Show the residency map, a page at a time; htmx requests get only the changing part."""
    base, error = base_model_get(name=name), ""
    asked = {key: request.GET.get(key, "") for key in ("minutes", "all", "page")}
    search = searched(request)
    try:
        minutes, page = read_minutes(asked["minutes"] or "15"), read_page(asked["page"] or "1")
        found = residency_map(
            base=base, minutes=minutes, search=search, everything=bool(asked["all"]), page=page
        )
    except InvalidInputError as wrong:
        error, minutes = str(wrong), 15
        found = residency_map(base=base, search=search)
    context = {
        "base": base,
        "map": found,
        "search": search,
        "minutes": minutes,
        "everything": bool(asked["all"]),
        "windows": _WINDOWS,
        "error": error,
        "totals": [found.tiers.get(item.pk) for item in found.copies],
        "previous": found.page - 1,
        "next": found.page + 1 if found.page < found.pages else None,
    }
    template = "staff/residency_status.html" if request.htmx else "staff/residency.html"  # type: ignore[attr-defined]
    return render(request, template, context, status=422 if error else 200)


@staff_page("GET")
def adapter(request: HttpRequest, adapter: str) -> HttpResponse:
    """Show an adapter's copies, its traffic on each, and the placement forms.

    `?base=` names the base model if the adapter's name does not.
    """
    base = _base_of(adapter, request.GET.get("base", ""))
    found = adapter_row(base=base, name=adapter)
    here = f"{reverse('console:staff-fleet-adapter', args=(adapter,))}?{urlencode({'base': base.name})}"
    context: dict[str, Any] = {
        "base": base,
        "name": adapter,
        "map": found,
        "row": found.rows[0],
        "here": here,
    }
    if request.htmx:  # type: ignore[attr-defined]
        return render(request, "staff/fleet_adapter_status.html", context)
    try:
        context["tenant"] = EngineName.parse(adapter).tenant
    except ContractError:
        context["tenant"] = ""
    rows = deployment_list_on(base_model=base)
    context["deployments"] = [_placing(row, adapter) for row in rows]
    return render(request, "staff/fleet_adapter.html", context)


def _base_of(adapter: str, named: str) -> BaseModel:
    """Return the adapter's base model. Raises NotFoundError."""
    if named:
        return base_model_get(name=named)
    try:
        parsed = EngineName.parse(adapter)
    except ContractError as error:
        raise NotFoundError(str(error)) from error
    if (base := adapter_base_model(tenant=parsed.tenant, name=parsed.adapter)) is None:
        raise NotFoundError(f"there is no adapter {adapter[:200]!r}")
    return base


def _placing(row: Deployment, adapter: str) -> dict[str, Any]:
    refusal = ""
    try:
        demand_placeable(row)
    except InvalidInputError as wrong:
        refusal = str(wrong)
    rules = rule_list(deployment=row, engine_name=adapter)
    return {"deployment": row, "copies": row.copies.all(), "rules": rules, "refusal": refusal}


def _fleet(found: Overview) -> dict[str, Any]:
    return {
        "fleet": found,
        "serving": found.count(CopyState.SERVING, CopyState.UNTOLD),
        "trouble": found.count(CopyState.SILENT, CopyState.REFUSING, CopyState.FAILED),
        "running": found.total("running"),
        "waiting": found.total("waiting"),
    }
