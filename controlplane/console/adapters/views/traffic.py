"""Manual traffic settings of an adapter's names: splits among versions, and fallbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.adapters.aliases import alias_move, alias_split, fallback_set
from controlplane.adapters.models import Adapter
from controlplane.adapters.selectors import adapter_get, alias_get
from controlplane.console.adapters.canary_form import Refused, canary_arms
from controlplane.console.adapters.traffic_form import fallback_shown, split_arms, split_shown
from controlplane.console.adapters.views.adapters import detail_context
from controlplane.console.adapters.views.aliases import alias_context
from controlplane.console.entered import entered
from controlplane.console.pages import tenant_page
from controlplane.console.seen import seen_again, unchanged
from controlplane.errors import ControlPlaneError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def split(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Set versions' shares of the alias's callers; all callers to one version ends the split."""
    adapter = adapter_get(tenant=tenant, name=name)
    alias_get(adapter=adapter, name=alias)
    try:
        reason = entered(request, "reason", most=1000)
        with unchanged(
            request, row=adapter, shown=lambda: split_shown(alias_get(adapter=adapter, name=alias))
        ):
            _share(adapter, alias, split_arms(request.POST), reason)
    except ControlPlaneError as error:
        context = alias_context(tenant, name, alias, sent=request.POST)
        context |= {"split_error": str(error), "seen": seen_again(request, error)}
        return render(request, "console/aliases/detail.html", context, status=422)
    messages.success(request, _("Traffic split saved. The change takes effect within a second."))
    return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def canary(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Set the canary slider: one version's share of callers; 0 and 100 end the canary."""
    adapter = adapter_get(tenant=tenant, name=name)
    alias_get(adapter=adapter, name=alias)
    try:
        with unchanged(
            request, row=adapter, shown=lambda: split_shown(alias_get(adapter=adapter, name=alias))
        ):
            stable = alias_get(adapter=adapter, name=alias).version.number
            _share(adapter, alias, canary_arms(request.POST, stable=stable), "")
    except ControlPlaneError as error:
        refused = Refused(alias, request.POST, str(error), seen_again(request, error))
        context = detail_context(tenant, name, refused=refused)
        return render(request, "console/adapters/detail.html", context, status=422)
    messages.success(request, _("Traffic split saved. The change takes effect within a second."))
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def alias_fallback(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Set the alias's fallbacks, which are served when no copy can serve its version."""
    adapter = adapter_get(tenant=tenant, name=name)
    found, models = alias_get(adapter=adapter, name=alias), _models(request)
    try:
        with unchanged(
            request, row=adapter, shown=lambda: fallback_shown(alias_get(adapter=adapter, name=alias))
        ):
            fallback_set(adapter=adapter, alias=found, models=models)
    except ControlPlaneError as error:
        context = alias_context(tenant, name, alias)
        context["fallback"] |= _refused(request, models, error)
        return render(request, "console/aliases/detail.html", context, status=422)
    _announce(request, models)
    return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def adapter_fallback(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Set the bare name's fallbacks."""
    adapter, models = adapter_get(tenant=tenant, name=name), _models(request)
    try:
        with unchanged(
            request, row=adapter, shown=lambda: fallback_shown(adapter_get(tenant=tenant, name=name))
        ):
            fallback_set(adapter=adapter, alias=None, models=models)
    except ControlPlaneError as error:
        context = detail_context(tenant, name)
        context["fallback"] |= _refused(request, models, error)
        return render(request, "console/adapters/detail.html", context, status=422)
    _announce(request, models)
    return redirect("console:adapter", tenant=tenant.pk, name=name)


def _share(adapter: Adapter, alias: str, arms: Sequence[tuple[int, int]], reason: str) -> None:
    """Set each version's share of the alias's callers; a version with all of them ends a split."""
    if len(arms) == 1 and arms[0][1] == 100:
        alias_move(adapter=adapter, name=alias, number=arms[0][0], reason=reason)
    else:
        alias_split(adapter=adapter, name=alias, arms=arms, reason=reason)


def _models(request: HttpRequest) -> list[str]:
    """Return the models in the order of the inputs, without empty ones."""
    return [model.strip() for model in request.POST.getlist("models") if model.strip()]


def _refused(request: HttpRequest, models: list[str], error: ControlPlaneError) -> dict[str, Any]:
    return {"models": models, "error": str(error), "seen": seen_again(request, error)}


def _announce(request: HttpRequest, models: list[str]) -> None:
    if models:
        text = _("Fallback models: %(models)s. The change takes effect within a second.")
        messages.success(request, text % {"models": ", ".join(models)})
    else:
        messages.success(request, _("Fallback models removed."))
