"""Staff: tenants, their export and their deletion."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.console.amounts import nano_entered
from controlplane.console.entered import entered
from controlplane.console.once import booked_once
from controlplane.console.pages import field_errors, staff_page
from controlplane.console.paging import page_of, searched
from controlplane.console.staff.tenant_figures import USE_DAYS, tenant_context, tenant_rows
from controlplane.errors import ControlPlaneError, InvalidInputError, NotFoundError
from controlplane.operations.export import export_pieces
from controlplane.operations.selectors import deletion_get, deletion_list
from controlplane.operations.services import tenant_deletion_cancel, tenant_deletion_schedule
from controlplane.platform.http.streaming import streamed
from controlplane.platform.mail_links import link_shown
from controlplane.tenants.limits.services import prepaid_stop_set
from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import tenant_get, tenant_list
from controlplane.tenants.services import tenant_create, tenant_resume, tenant_suspend

SHOWN: Final = 100
_MOST: Final = (("name", "name", 200), ("owner", "email", 254))
"""Input, its error field, longest text."""


@require_http_methods(["GET", "POST"])
@staff_page
def tenants(request: HttpRequest) -> HttpResponse:
    """List and search tenants, with the running deletions; POST creates a tenant."""
    values = {name: request.POST.get(name, "").strip() for name in ("id", "name", "owner")}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            made = _create(request, values)
        except ControlPlaneError as error:
            # The service's errors distinguish the tenant's id and the owner's address by field.
            errors = field_errors(error, conflict_field="id")
        else:
            messages.success(request, _("Tenant %(tenant)s was created.") % {"tenant": made.pk})
            return redirect("console:staff-tenant", slug=made.pk)
    search = searched(request)
    page = page_of(request, tenant_list(search=search))
    context = {
        "page": page,
        "found": tenant_rows(page.rows),
        "search": search,
        "days": USE_DAYS,
        "deletions": deletion_list()[:SHOWN],
        "values": values,
        "errors": errors,
    }
    return render(request, "staff/tenants.html", context, status=422 if errors else 200)


@transaction.atomic
def _create(request: HttpRequest, values: dict[str, str]) -> Tenant:
    """Create a tenant, and invite its first owner if one is named. Raises ControlPlaneError."""
    assert isinstance(request.user, User)
    for name, field, most in _MOST:
        if len(values[name]) > most:
            raise InvalidInputError(_("at most %(most)s characters") % {"most": most}, field=field)
    made = tenant_create(slug=values["id"], name=values["name"])
    if values["owner"]:
        invitation = invitation_create(
            tenant=made, email=values["owner"], role=Role.OWNER, invited_by=request.user
        )
        if link := link_shown(reverse("console:invitation", args=(invitation_token(invitation),))):
            text = _("Invitation link sent to %(email)s: %(link)s")
            messages.info(request, text % {"email": invitation.email, "link": link})
    return made


@require_GET
@staff_page
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one tenant: limits, quota, payments, export, deletion."""
    return render(request, "staff/tenant.html", tenant_context(tenant_get(slug=slug)))


@require_POST
@staff_page
def prepaid(request: HttpRequest, slug: str) -> HttpResponse:
    """Set whether the tenant's calls stop when its prepaid credit is used up."""
    found = tenant_get(slug=slug)
    stops = request.POST.get("stops") == "true"
    prepaid_stop_set(tenant=found, stops=stops)
    if stops:
        messages.success(
            request, _("Requests of %(tenant)s are rejected at zero balance.") % {"tenant": slug}
        )
    else:
        messages.success(request, _("Requests of %(tenant)s continue at zero balance.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def top_up(request: HttpRequest, slug: str) -> HttpResponse:
    """Book a deposit or a credit; a form that is sent twice counts once."""
    found = tenant_get(slug=slug)
    try:
        _book_once(request, found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Recorded for %(tenant)s.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


def _book_once(request: HttpRequest, found: Tenant) -> None:
    nano = nano_entered(request.POST.get("amount", ""), field="amount")
    note, credit = entered(request, "note", most=200), request.POST.get("what") == "credit"

    expires_on = _last_day(request) if credit else None
    parts = (found.pk, str(nano), note, str(credit), str(expires_on))
    with booked_once(request, what="top-up", parts=parts) as is_first:
        if is_first and credit:
            credit_grant(tenant=found, amount_nano=nano, expires_on=expires_on, note=note)
        elif is_first:
            payment_record(tenant=found, amount_nano=nano, memo=note)


def _last_day(request: HttpRequest) -> dt.date | None:
    text = request.POST.get("expires_on", "").strip()
    try:
        return dt.date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidInputError(_("give the last day as YYYY-MM-DD"), field="expires_on") from None


@require_GET
@staff_page
def export(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Download all data of the tenant as a tar archive."""
    pieces = export_pieces(tenant_get(slug=slug))
    response = streamed(request, pieces, content_type="application/x-tar", file_name=f"{slug}.tar")
    response["Content-Encoding"] = "identity"
    return response


@require_POST
@staff_page
def suspend(request: HttpRequest, slug: str) -> HttpResponse:
    """Suspend the tenant's calls."""
    found = tenant_get(slug=slug)
    try:
        tenant_suspend(tenant=found, reason=request.POST.get("reason", ""))
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Tenant %(tenant)s was suspended.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def resume(request: HttpRequest, slug: str) -> HttpResponse:
    """Resume the tenant's calls."""
    found = tenant_get(slug=slug)
    try:
        tenant_resume(tenant=found)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Tenant %(tenant)s was resumed.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    """Disable the tenant, and schedule its deletion after the grace period."""
    try:
        deletion = tenant_deletion_schedule(
            tenant=tenant_get(slug=slug),
            confirm=request.POST.get("confirm", ""),
            reason=request.POST.get("reason", ""),
        )
    except NotFoundError:
        raise
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        text = _("Tenant %(tenant)s was disabled. It is purged on %(day)s.")
        messages.success(request, text % {"tenant": slug, "day": deletion.purge_after.date()})
    return redirect("console:staff-tenant", slug=slug)


@require_POST
@staff_page
def cancel(request: HttpRequest, slug: str) -> HttpResponse:
    """Cancel the deletion."""
    try:
        tenant_deletion_cancel(deletion=deletion_get(slug=slug))
    except NotFoundError:
        raise
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Tenant %(tenant)s was restored.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)
