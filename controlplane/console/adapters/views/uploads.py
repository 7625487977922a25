"""Unfinished uploads, which count against the tenant's quota and so can be ended on a page."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.artifacts.uploads.selectors import upload_get
from controlplane.artifacts.uploads.services import upload_discard
from controlplane.console.pages import tenant_page
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@require_POST
@tenant_page(Permission.ADAPTERS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, upload_id: str) -> HttpResponse:
    """Discard an upload that no version uses, with its received bytes."""
    upload = upload_get(tenant=tenant, upload_id=upload_id)
    upload_discard(upload=upload)
    messages.success(request, _("The upload of %(file)s was removed.") % {"file": upload.name})
    return redirect("console:adapter-register", tenant=tenant.pk)
