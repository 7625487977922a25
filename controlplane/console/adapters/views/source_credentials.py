"""Credentials for imports: hubs' tokens and S3 keys, whose secrets no page shows."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.selectors import credential_get, credential_list
from controlplane.artifacts.credentials.services import credential_create, credential_delete
from controlplane.console.pages import field_errors, tenant_page
from controlplane.errors import ControlPlaneError
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Permission

_FIELDS = ("name", "kind", "endpoint", "region", "access_key_id")


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.ADAPTERS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List credentials and show the form. A refused form is shown again without its secret."""
    values = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    errors: dict[str, str] = {}
    if request.method == "POST":
        assert isinstance(request.user, User)
        try:
            secret = request.POST.get("secret", "").strip()
            credential_create(tenant=tenant, secret=secret, created_by=request.user, **values)
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="name")
        else:
            messages.success(request, _("Credential %(name)s was added.") % {"name": values["name"]})
            return redirect("console:source-credentials", tenant=tenant.pk)
    context = {
        "credentials": credential_list(tenant=tenant),
        "kinds": SourceCredential.Kind.choices,
        "values": values,
        "errors": errors,
    }
    return render(request, "console/source_credentials.html", context, status=422 if errors else 200)


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Delete a credential."""
    credential_delete(credential=credential_get(tenant=tenant, name=name))
    messages.success(request, _("Credential %(name)s was deleted.") % {"name": name})
    return redirect("console:source-credentials", tenant=tenant.pk)
