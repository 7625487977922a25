"""One adapter version: its validation and findings, its lineage, and its deletion."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.adapters.lifecycle import version_delete, version_restore, version_update
from controlplane.adapters.lineage import FIELDS
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.selectors import adapter_get, version_get
from controlplane.adapters.serializers import VersionChange
from controlplane.adapters.serving import serving_options
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed, posted
from controlplane.console.pages import tenant_page
from controlplane.console.seen import unchanged
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@tenant_page(read=Permission.ADAPTERS_READ)
def detail(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Show the version."""
    version = version_get(adapter=adapter_get(tenant=tenant, name=name), number=number)
    return _page(version, FormErrors(request, shown=_lineage(version)), _lineage(version))


@tenant_page(write=Permission.ADAPTERS_WRITE)
def update(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Replace lineage and notes."""
    adapter = adapter_get(tenant=tenant, name=name)
    version = version_get(adapter=adapter, number=number)
    values = posted(request, VersionChange)

    def current() -> dict[str, str]:
        return _lineage(version_get(adapter=adapter, number=number))

    errors = FormErrors(request, conflict_field="notes", shown=_lineage(version))
    with errors, unchanged(request, row=adapter, shown=current):
        version_update(version=version, **dict.fromkeys(FIELDS, "") | parsed(VersionChange, values))
        messages.success(request, _("Saved."))
        return redirect("console:version", tenant=tenant.pk, name=name, number=number)
    return _page(version, errors, values)


def _page(version: AdapterVersion, errors: FormErrors, values: dict[str, str]) -> HttpResponse:
    options = []
    if version.status == AdapterVersion.Status.READY:
        options = serving_options(base_model=version.adapter.base_model, ref=version.ref())
    context = {"adapter": version.adapter, "version": version, "values": values, "serving": options}
    return errors.render("console/adapters/version.html", context)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Delete a version that no name points to."""
    version = version_get(adapter=adapter_get(tenant=tenant, name=name), number=number)
    with RefusalMessage(request):
        version_delete(version=version)
        messages.success(request, _("Version %(number)s was deleted.") % {"number": number})
        return redirect("console:adapter", tenant=tenant.pk, name=name)
    return redirect("console:version", tenant=tenant.pk, name=name, number=number)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def restore(request: HttpRequest, tenant: Tenant, name: str, number: int) -> HttpResponse:
    """Restore a deleted version."""
    version_restore(adapter=adapter_get(tenant=tenant, name=name), number=number)
    messages.success(request, _("Version %(number)s was restored.") % {"number": number})
    return redirect("console:version", tenant=tenant.pk, name=name, number=number)


def _lineage(version: AdapterVersion) -> dict[str, str]:
    """Return lineage and notes as the form's values."""
    return {field: getattr(version, field) for field in FIELDS}
