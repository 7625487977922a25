"""Service accounts of a tenant: listing, creating, changing roles, disabling."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.pages import page_access, page_user, tenant_page
from controlplane.console.paging import page_of
from controlplane.tenants.models import Project, Tenant
from controlplane.tenants.roles import GRANTS, Permission, Role
from controlplane.tenants.selectors import (
    project_get,
    project_list,
    service_account_get,
    service_account_keys_list,
)
from controlplane.tenants.services import (
    service_account_create,
    service_account_disable,
    service_account_set_role,
)


@tenant_page(read=Permission.SERVICE_ACCOUNTS_READ, write=Permission.SERVICE_ACCOUNTS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List service accounts, with the form that creates one."""
    values = {"name": "", "project": Project.DEFAULT, "role": Role.ENGINEER.value}
    errors = FormErrors(request, conflict_field="name")
    if request.method == "POST":
        values = {key: request.POST.get(key, "").strip() for key in values}
        with errors:
            account = service_account_create(
                project=project_get(tenant=tenant, slug=values["project"]),
                name=values["name"],
                role=values["role"],
                by=page_access(request),
                created_by=page_user(request),
            )
            text = _("Service account %(name)s was created. Create a key for it next.")
            messages.success(request, text % {"name": account.name})
            return redirect("console:service-accounts", tenant=tenant.pk)
    held = page_access(request).permissions
    page = page_of(request, service_account_keys_list(tenant=tenant))
    context = {
        "accounts": page.rows,
        "page": page,
        "projects": project_list(tenant=tenant, active=True),
        "roles": [role for role in Role if role != Role.OWNER and GRANTS[role] <= held],
        "values": values,
    }
    return errors.render("console/service_accounts.html", context)


@tenant_page(write=Permission.SERVICE_ACCOUNTS_WRITE)
def set_role(request: HttpRequest, tenant: Tenant, account: str) -> HttpResponse:
    """Change the role of the account's keys."""
    found = service_account_get(tenant=tenant, name=account)
    with RefusalMessage(request):
        role = request.POST.get("role", "")
        service_account_set_role(account=found, role=role, by=page_access(request))
    return redirect("console:service-accounts", tenant=tenant.pk)


@tenant_page(write=Permission.SERVICE_ACCOUNTS_WRITE)
def disable(request: HttpRequest, tenant: Tenant, account: str) -> HttpResponse:
    """Disable the account and revoke its keys."""
    found = service_account_get(tenant=tenant, name=account)
    service_account_disable(account=found, by=page_access(request))
    text = _("Service account %(name)s was disabled and its keys were revoked.")
    messages.success(request, text % {"name": account})
    return redirect("console:service-accounts", tenant=tenant.pk)
