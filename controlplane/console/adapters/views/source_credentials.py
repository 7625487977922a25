"""Credentials for imports: hubs' tokens and S3 keys, whose secrets no page shows."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.selectors import credential_get, credential_list
from controlplane.artifacts.credentials.services import credential_create, credential_delete
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import page_user, tenant_page
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_FIELDS = ("name", "kind", "endpoint", "region", "access_key_id")


@tenant_page(read=Permission.ADAPTERS_WRITE, write=Permission.ADAPTERS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List credentials and show the form. A refused form is shown again without its secret."""
    values = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    errors = FormErrors(request, conflict_field="name")
    if request.method == "POST":
        with errors:
            secret = request.POST.get("secret", "").strip()
            credential_create(tenant=tenant, secret=secret, created_by=page_user(request), **values)
            messages.success(request, _("Credential %(name)s was added.") % {"name": values["name"]})
            return redirect("console:source-credentials", tenant=tenant.pk)
    context = {
        "credentials": credential_list(tenant=tenant),
        "kinds": SourceCredential.Kind.choices,
        "values": values,
    }
    return errors.render("console/source_credentials.html", context)


@tenant_page(write=Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Delete a credential."""
    credential_delete(credential=credential_get(tenant=tenant, name=name))
    messages.success(request, _("Credential %(name)s was deleted.") % {"name": name})
    return redirect("console:source-credentials", tenant=tenant.pk)
