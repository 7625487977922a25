"""The operator's page of a deployment's adapters: residency and traffic by copy, and placements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from controlplane.console.pages import staff_page
from controlplane.deployments.models import Deployment
from controlplane.deployments.placement.rules import adapter_evict, adapter_move, adapter_pin, adapter_unpin
from controlplane.deployments.placement.selectors import demand_placeable, rule_list
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.fleet.adapters_seen import AdaptersSeen, SeenAdapter, adapters_seen
from controlplane.fleet.adapters_seen_api import loaded, read_minutes

_FIELDS: Final = ("adapter", "copies", "source", "to", "keep_away")
_TONES: Final = {"device": "ok", "host": "info", "server": "ok", "no": "", "unknown": "warn"}


@require_GET
@staff_page
def index(request: HttpRequest, deployment: str) -> HttpResponse:
    """Show the adapters and the forms."""
    found = deployment_get(name=deployment)
    values = {"adapter": request.GET.get("adapter", "").strip()[:200]}
    return _page(request, found, values)


@require_POST
@staff_page
def act(request: HttpRequest, deployment: str) -> HttpResponse:
    """Pin, unpin, move or evict an adapter."""
    found = deployment_get(name=deployment)
    values = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    on = request.POST.getlist("on")
    action = _ACTIONS.get(request.POST.get("action", ""))
    try:
        if action is None:
            raise InvalidInputError(_("choose an action"), field="action")
        action(found, values, on)
    except ControlPlaneError as error:
        submitted = {**values, "on": on, "action": request.POST.get("action", "")}
        return _page(request, found, submitted, error=str(error))
    messages.success(request, _("Saved. The reconciler applies the change."))
    if url_has_allowed_host_and_scheme(back := request.POST.get("next", ""), allowed_hosts=None):
        return redirect(back)
    return redirect("console:staff-deployment-adapters", deployment=deployment)


def _pin(deployment: Deployment, values: dict[str, str], on: list[str]) -> None:
    text = values["copies"]
    if text and not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInputError(_("give a whole number"), field="copies")
    copies = int(text) if text else None
    adapter_pin(deployment=deployment, engine_name=values["adapter"], copies=copies, on=on)


def _unpin(deployment: Deployment, values: dict[str, str], on: list[str]) -> None:
    adapter_unpin(deployment=deployment, engine_name=values["adapter"])


def _evict(deployment: Deployment, values: dict[str, str], on: list[str]) -> None:
    keep_away = values["keep_away"] == "on"
    adapter_evict(deployment=deployment, engine_name=values["adapter"], copies=on, keep_away=keep_away)


def _move(deployment: Deployment, values: dict[str, str], on: list[str]) -> None:
    adapter_move(
        deployment=deployment, engine_name=values["adapter"], source=values["source"], to=values["to"]
    )


_ACTIONS: Final[dict[str, Callable[[Deployment, dict[str, str], list[str]], None]]] = {
    "pin": _pin,
    "unpin": _unpin,
    "evict": _evict,
    "move": _move,
}


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
