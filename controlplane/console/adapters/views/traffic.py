"""Manual traffic settings of an adapter's names: splits among versions, and fallbacks."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.adapters.aliases import alias_move, alias_split, fallback_set
from controlplane.adapters.models import Adapter, Alias
from controlplane.adapters.selectors import adapter_get, alias_get
from controlplane.console.adapters.canary_form import Refused, canary_arms
from controlplane.console.adapters.traffic_form import fallback_shown, split_arms, split_shown
from controlplane.console.adapters.views.adapters import detail_context
from controlplane.console.adapters.views.aliases import alias_context
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import tenant_page
from controlplane.console.seen import unchanged
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@tenant_page(write=Permission.ADAPTERS_WRITE)
def split(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Set versions' shares of the alias's callers; all callers to one version ends the split."""
    adapter = adapter_get(tenant=tenant, name=name)
    alias_get(adapter=adapter, name=alias)

    def current() -> dict[str, str]:
        return split_shown(alias_get(adapter=adapter, name=alias))

    with FormErrors(request) as errors, unchanged(request, row=adapter, shown=current):
        _share(adapter, alias, split_arms(request.POST), request.POST.get("reason", ""))
        messages.success(request, _("Traffic split saved. The change takes effect within a second."))
        return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)
    context = alias_context(tenant, name, alias, sent=request.POST)
    context |= {"split_error": errors.text, "seen": errors.seen}
    return errors.render("console/aliases/detail.html", context)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def canary(request: HttpRequest, tenant: Tenant, name: str, alias: str) -> HttpResponse:
    """Set the canary slider: one version's share of callers; 0 and 100 end the canary."""
    adapter = adapter_get(tenant=tenant, name=name)
    alias_get(adapter=adapter, name=alias)

    def current() -> dict[str, str]:
        return split_shown(alias_get(adapter=adapter, name=alias))

    with FormErrors(request) as errors, unchanged(request, row=adapter, shown=current):
        stable = alias_get(adapter=adapter, name=alias).version.number
        _share(adapter, alias, canary_arms(request.POST, stable=stable), "")
        messages.success(request, _("Traffic split saved. The change takes effect within a second."))
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    refused = Refused(alias, request.POST, errors.text, errors.seen)
    return errors.render("console/adapters/detail.html", detail_context(tenant, name, refused=refused))


@tenant_page(write=Permission.ADAPTERS_WRITE)
def fallback(request: HttpRequest, tenant: Tenant, name: str, alias: str = "") -> HttpResponse:
    """Set the fallbacks of an alias, or of the bare name, which are served when no copy can serve it."""

    def target() -> Adapter | Alias:
        found = adapter_get(tenant=tenant, name=name)
        return alias_get(adapter=found, name=alias) if alias else found

    found, adapter = target(), adapter_get(tenant=tenant, name=name)
    # In the order of the inputs, without empty ones.
    models = [model.strip() for model in request.POST.getlist("models") if model.strip()]
    errors = FormErrors(request)
    with errors, unchanged(request, row=adapter, shown=lambda: fallback_shown(target())):
        fallback_set(adapter=adapter, alias=found if isinstance(found, Alias) else None, models=models)
        text = _("Fallback models: %(models)s. The change takes effect within a second.")
        done = text % {"models": ", ".join(models)} if models else _("Fallback models removed.")
        messages.success(request, done)
        if alias:
            return redirect("console:alias", tenant=tenant.pk, name=name, alias=alias)
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    context = alias_context(tenant, name, alias) if alias else detail_context(tenant, name)
    context["fallback"] |= {"models": models, "error": errors.text, "seen": errors.seen}
    return errors.render(f"console/{'aliases' if alias else 'adapters'}/detail.html", context)


def _share(adapter: Adapter, alias: str, arms: Sequence[tuple[int, int]], reason: str) -> None:
    """Set each version's share of the alias's callers; a version with all of them ends a split."""
    if len(arms) == 1 and arms[0][1] == 100:
        alias_move(adapter=adapter, name=alias, number=arms[0][0], reason=reason)
    else:
        alias_split(adapter=adapter, name=alias, arms=arms, reason=reason)
