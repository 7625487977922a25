"""Projects of a tenant: listing, creating, renaming and archiving."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.pages import tenant_page
from controlplane.console.paging import page_of
from controlplane.tenants.models import Project, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import project_get, project_list
from controlplane.tenants.services import project_archive, project_create, project_rename


@tenant_page(read=Permission.PROJECTS_READ, write=Permission.PROJECTS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List projects, with the form that creates one."""
    values, errors = {"slug": "", "name": ""}, FormErrors(request, conflict_field="slug")
    if request.method == "POST":
        values = {key: request.POST.get(key, "").strip() for key in values}
        with errors:
            project = project_create(tenant=tenant, **values)
            messages.success(request, _("Project %(slug)s was created.") % {"slug": project.slug})
            return redirect("console:projects", tenant=tenant.pk)
    page = page_of(request, project_list(tenant=tenant, active=True))
    context = {"projects": page.rows, "page": page, "default": Project.DEFAULT, "values": values}
    return errors.render("console/projects.html", context)


@tenant_page(write=Permission.PROJECTS_WRITE)
def rename(request: HttpRequest, tenant: Tenant, project: str) -> HttpResponse:
    """Rename a project; its slug stays."""
    found = project_get(tenant=tenant, slug=project)
    with RefusalMessage(request):
        project_rename(project=found, name=request.POST.get("name", ""))
    return redirect("console:projects", tenant=tenant.pk)


@tenant_page(write=Permission.PROJECTS_WRITE)
def archive(request: HttpRequest, tenant: Tenant, project: str) -> HttpResponse:
    """Archive a project, which then accepts no new keys."""
    found = project_get(tenant=tenant, slug=project)
    with RefusalMessage(request):
        project_archive(project=found)
        messages.success(request, _("Project %(slug)s was archived.") % {"slug": project})
    return redirect("console:projects", tenant=tenant.pk)
