"""One alias: its current and earlier versions, undoing changes, and canary releases with live figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.adapters.aliases import alias_rollback
from controlplane.adapters.models import Adapter, Alias
from controlplane.adapters.selectors import adapter_get, alias_change_list, alias_get
from controlplane.canaries.models import Rollout
from controlplane.canaries.selectors import rollout_get, rollout_list, split_traffic
from controlplane.canaries.services import (
    DEFAULT_STEPS,
    rollout_abort,
    rollout_pause,
    rollout_promote,
    rollout_resume,
    rollout_start,
)
from controlplane.console.adapters.traffic_form import fallback_context, split_shares, split_shown
from controlplane.console.amounts import whole
from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.pages import tenant_page
from controlplane.console.seen import seen_tag
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_SHOWN: Final = 20
_ACTIONS: Final[dict[str, Callable[..., Rollout]]] = {
    "pause": rollout_pause,
    "resume": rollout_resume,
    "abort": rollout_abort,
    "promote": rollout_promote,
}


@tenant_page(read=Permission.ADAPTERS_READ)
def detail(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Show the alias, even if it was removed and has a history."""
    return render(request, "console/aliases/detail.html", alias_context(tenant, name, alias))


def alias_context(
    tenant: Tenant, name: str, alias: str, *, sent: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the page's context; `sent` are the values of a refused split. Raises NotFoundError."""
    adapter = adapter_get(tenant=tenant, name=name)
    changes = list(alias_change_list(adapter=adapter, name=alias)[:_SHOWN])
    found = next((item for item in adapter.live_aliases if item.name == alias), None)
    if found is None and not changes:
        raise NotFoundError(f"adapter {name} has no alias {alias!r}")
    rollouts = list(rollout_list(adapter=adapter, alias=alias).prefetch_related("decisions")[:_SHOWN])
    return {
        "adapter": adapter,
        "alias": alias,
        "found": found,
        "changes": changes,
        "active": next((rollout for rollout in rollouts if rollout.is_active), None),
        "ended": [rollout for rollout in rollouts if not rollout.is_active],
        "others": _others(adapter, found),
        "values": {"steps": ", ".join(map(str, DEFAULT_STEPS)), "hold": 10, "requests": 100},
        "shares": split_shares(adapter, found, sent) if found else (),
        "split_reason": sent.get("reason", "") if sent else "",
        "seen": seen_tag(split_shown(found)) if found else "",
        "fallback": fallback_context(tenant, found) if found else {},
    }


def _others(adapter: Adapter, found: Alias | None) -> list[int]:
    """Return the versions that a canary can use."""
    own = found.version_id if found else None
    return [item.number for item in adapter.live_versions if item.is_callable and item.pk != own]


@tenant_page(write=Permission.ADAPTERS_WRITE)
def rollback(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Revert the newest change, or restore an earlier state; refused after another change in between."""
    adapter = adapter_get(tenant=tenant, name=name)
    with RefusalMessage(request):
        alias_rollback(
            adapter=adapter,
            name=alias,
            to=_whole(request.POST["to"]) if request.POST.get("to") else None,
            newest=_whole(request.POST["newest"]) if request.POST.get("newest") else None,
        )
        text = _("%(adapter)s@%(alias)s was rolled back. The change takes effect within a second.")
        messages.success(request, text % {"adapter": name, "alias": alias})
    if request.POST.get("from") == "adapter":
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)


@tenant_page(read=Permission.USAGE_READ)
def arms(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Show each version's traffic of a split alias, polled; once the split has ended, the page reloads."""
    adapter = adapter_get(tenant=tenant, name=name)
    found = alias_get(adapter=adapter, name=alias)
    context = {"adapter": adapter, "alias": found, "traffic": split_traffic(alias=found)}
    response = render(request, "console/aliases/arms.html", context)
    if not found.live_arms:
        response["HX-Refresh"] = "true"
    return response


@tenant_page(write=Permission.ADAPTERS_WRITE)
def start(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Start a canary."""
    adapter = adapter_get(tenant=tenant, name=name)
    values = {key: request.POST.get(key, "") for key in ("steps", "hold", "requests")}
    with FormErrors(request) as errors:
        rollout_start(
            adapter=adapter,
            alias=alias,
            version=_whole(request.POST.get("version", "")),
            steps=[_whole(word) for word in values["steps"].replace(",", " ").split()],
            hold_seconds=60 * _whole(values["hold"]),
            min_requests=_whole(values["requests"]),
        )
        messages.success(request, _("Canary started."))
        return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)
    context = alias_context(tenant, name, alias) | {"values": values, "start_error": errors.text}
    return errors.render("console/aliases/detail.html", context)


@tenant_page(read=Permission.ADAPTERS_READ)
def status(request: HttpRequest, tenant: Tenant, name: str, alias: str, rollout: int) -> HttpResponse:
    """Show a running rollout's figures, polled; once it has ended, the page reloads."""
    adapter = adapter_get(tenant=tenant, name=name)
    found = rollout_get(adapter=adapter, alias=alias, number=rollout)
    context = {"adapter": adapter, "alias": alias, "active": found}
    response = render(request, "console/aliases/rollout.html", context)
    if not found.is_active:
        response["HX-Refresh"] = "true"
    return response


@tenant_page(write=Permission.ADAPTERS_WRITE)
def act(
    request: HttpRequest, tenant: Tenant, name: str, alias: str, rollout: int, action: str
) -> HttpResponse:
    """Pause, resume, abort or promote a rollout."""
    found = rollout_get(adapter=adapter_get(tenant=tenant, name=name), alias=alias, number=rollout)
    if action not in _ACTIONS:
        raise NotFoundError(f"a rollout cannot {action}")
    with RefusalMessage(request):
        _ACTIONS[action](rollout=found)
    return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)


def _whole(text: str) -> int:
    if (number := whole(text.strip())) is None:
        raise InvalidInputError(_("%(word)s is not a whole number") % {"word": text.strip()[:40]})
    return number
