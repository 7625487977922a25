"""The operator's page of a deployment's adapters: residency and traffic by copy, and placements."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, parsed
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Deployment
from controlplane.deployments.placement.api import AdapterPinInput
from controlplane.deployments.placement.rules import adapter_evict, adapter_move, adapter_pin, adapter_unpin
from controlplane.deployments.placement.selectors import demand_placeable, rule_list
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import InvalidInputError
from controlplane.fleet.adapters_seen import AdaptersSeen, SeenAdapter, adapters_seen
from controlplane.fleet.adapters_seen_api import loaded, read_minutes

_FIELDS: Final = ("adapter", "copies", "source", "to", "keep_away")
_TONES: Final = {"device": "ok", "host": "info", "server": "ok", "no": "", "unknown": "warn"}


@staff_page("GET")
def index(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show the adapters and the forms."""
    found = deployment_get(name=deployment)
    values = {"adapter": request.GET.get("adapter", "").strip()[:200]}
    return _page(request, found, values)


@staff_page("POST")
def act(request: HttpRequest, deployment: str) -> HttpResponse:
    """Pin, unpin, move or evict an adapter."""
    found = deployment_get(name=deployment)
    values = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    on = request.POST.getlist("on")
    with FormErrors(request) as errors:
        _act(request.POST.get("action", ""), found, values, on)
        messages.success(request, _("Saved. The reconciler applies the change."))
        if url_has_allowed_host_and_scheme(back := request.POST.get("next", ""), allowed_hosts=None):
            return redirect(back)
        return redirect("console:staff-deployment-adapters", deployment=deployment)
    submitted = {**values, "on": on, "action": request.POST.get("action", "")}
    return _page(request, found, submitted, error=errors.text)


def _act(action: str, deployment: Deployment, values: dict[str, str], on: list[str]) -> None:
    what: dict[str, Any] = {"deployment": deployment, "engine_name": values["adapter"]}
    match action:
        case "pin":
            adapter_pin(**what, **parsed(AdapterPinInput, {"copies": values["copies"], "on": on}))
        case "unpin":
            adapter_unpin(**what)
        case "evict":
            adapter_evict(**what, copies=on, keep_away=values["keep_away"] == "on")
        case "move":
            adapter_move(**what, source=values["source"], to=values["to"])
        case _:
            raise InvalidInputError(_("choose an action"), field="action")


def _page(
    request: HttpRequest, deployment: Deployment, values: dict[str, Any], *, error: str = ""
) -> HttpResponse:
    search = request.GET.get("search", "").strip()[:200]
    refusal = ""
    try:
        seen = adapters_seen(
            deployment=deployment, minutes=read_minutes(request.GET.get("minutes", "15")), search=search
        )
    except InvalidInputError as wrong:
        error, seen = error or str(wrong), adapters_seen(deployment=deployment, search=search)
    try:
        demand_placeable(deployment)
    except InvalidInputError as wrong:
        refusal = str(wrong)
    context = {
        "deployment": deployment,
        "seen": seen,
        "rows": _rows(seen),
        "search": search,
        "values": values,
        "error": error,
        "refusal": refusal,
        "rules": rule_list(deployment=deployment),
        "copies": deployment.copies.all(),
        "windows": (5, 15, 60),
    }
    return render(request, "console/deployments/adapters.html", context, status=422 if error else 200)


def _rows(seen: AdaptersSeen) -> list[dict[str, Any]]:
    """Return a row for each adapter at each copy; an adapter without any copy gets a single row."""
    rows = []
    for item in seen.adapters:
        places = [place for place in item.on if place.held is not None or place.use.requests]
        rows += [
            {
                "adapter": item.name,
                "copy": place.copy,
                "loaded": loaded(place),
                "use": place.use,
                # A state from a newer worker has no tone.
                "tone": _TONES.get(loaded(place), ""),
                "pinned": item.pinned_on(place.copy),
                "held": place.held,
                "last": place.last_used(seen.at),
                "placeable": "." in item.name,
                "tokens": place.use.prompt_tokens + place.use.completion_tokens,
            }
            for place in places
        ] or [_nowhere(item)]
    return rows


def _nowhere(item: SeenAdapter) -> dict[str, Any]:
    return {"adapter": item.name, "copy": "", "loaded": "no", "tone": "", "placeable": True}
