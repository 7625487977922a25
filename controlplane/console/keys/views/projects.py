"""Projects of a tenant: listing, creating, renaming and archiving."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.console.pages import field_errors, tenant_page
from controlplane.console.paging import page_of
from controlplane.errors import ConflictError, ControlPlaneError, InvalidInputError
from controlplane.tenants.models import Project, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import project_get, project_list
from controlplane.tenants.services import project_archive, project_create, project_rename


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.PROJECTS_READ, Permission.PROJECTS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List projects, with the form that creates one."""
    values, errors = {"slug": "", "name": ""}, dict[str, str]()
    if request.method == "POST":
        values = {key: request.POST.get(key, "").strip() for key in values}
        try:
            project = project_create(tenant=tenant, **values)
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="slug")
        else:
            messages.success(request, _("Project %(slug)s was created.") % {"slug": project.slug})
            return redirect("console:projects", tenant=tenant.pk)
    page = page_of(request, project_list(tenant=tenant, active=True))
    context = {
        "projects": page.rows,
        "page": page,
        "default": Project.DEFAULT,
        "values": values,
        "errors": errors,
    }
    return render(request, "console/projects.html", context, status=422 if errors else 200)


@require_POST
@tenant_page(Permission.PROJECTS_WRITE)
def rename(request: HttpRequest, tenant: Tenant, project: str) -> HttpResponse:
    """Rename a project; its slug stays."""
    found = project_get(tenant=tenant, slug=project)
    try:
        project_rename(project=found, name=request.POST.get("name", ""))
    except InvalidInputError as error:
        messages.error(request, str(error))
    return redirect("console:projects", tenant=tenant.pk)


@require_POST
@tenant_page(Permission.PROJECTS_WRITE)
def archive(request: HttpRequest, tenant: Tenant, project: str) -> HttpResponse:
    """Archive a project, which then accepts no new keys."""
    found = project_get(tenant=tenant, slug=project)
    try:
        project_archive(project=found)
    except ConflictError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Project %(slug)s was archived.") % {"slug": project})
    return redirect("console:projects", tenant=tenant.pk)
