"""One adapter version: its validation and findings, its lineage, and its deletion."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from controlplane.adapters.lifecycle import version_delete, version_restore, version_update
from controlplane.adapters.lineage import FIELDS
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.selectors import adapter_get, version_get
from controlplane.console.entered import fitting
from controlplane.console.pages import field_errors, tenant_page
from controlplane.console.seen import seen_again, seen_tag, unchanged
from controlplane.errors import ControlPlaneError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@require_GET
@tenant_page(Permission.ADAPTERS_READ)
def detail(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Show the version."""
    adapter = adapter_get(tenant=tenant, name=name)
    version = version_get(adapter=adapter, number=number)
    values = _lineage(version)
    context = {"adapter": adapter, "version": version, "values": values, "seen": seen_tag(values)}
    return render(request, "console/adapters/version.html", context)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def update(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Replace lineage and notes."""
    adapter = adapter_get(tenant=tenant, name=name)
    version = version_get(adapter=adapter, number=number)
    values = {field: request.POST.get(field, "").strip() for field in FIELDS}

    def current() -> dict[str, str]:
        return _lineage(version_get(adapter=adapter, number=number))

    try:
        with unchanged(request, row=adapter, shown=current):
            version_update(version=version, **fitting(values, FIELDS))
    except ControlPlaneError as error:
        errors = field_errors(error, conflict_field="notes")
        context = {"adapter": adapter, "version": version, "values": values, "errors": errors}
        context["seen"] = seen_again(request, error)
        return render(request, "console/adapters/version.html", context, status=422)
    messages.success(request, _("Saved."))
    return redirect("console:version", tenant=tenant.pk, name=name, number=number)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Delete a version that no name points to."""
    version = version_get(adapter=adapter_get(tenant=tenant, name=name), number=number)
    try:
        version_delete(version=version)
    except ControlPlaneError as error:
        messages.error(request, str(error))
        return redirect("console:version", tenant=tenant.pk, name=name, number=number)
    messages.success(request, _("Version %(number)s was deleted.") % {"number": number})
    return redirect("console:adapter", tenant=tenant.pk, name=name)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def restore(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Restore a deleted version."""
    version_restore(adapter=adapter_get(tenant=tenant, name=name), number=number)
    messages.success(request, _("Version %(number)s was restored.") % {"number": number})
    return redirect("console:version", tenant=tenant.pk, name=name, number=number)


def _lineage(version: AdapterVersion) -> dict[str, str]:
    """Return lineage and notes as the form's values."""
    return {field: getattr(version, field) for field in FIELDS}
