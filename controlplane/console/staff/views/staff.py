"""Staff: tenants, their export and their deletion."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.billing.serializers import CreditInput
from controlplane.console.amounts import nano_entered
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed, posted
from controlplane.console.once import booked_once
from controlplane.console.pages import page_user, staff_page
from controlplane.console.paging import page_of, searched
from controlplane.console.staff.tenant_figures import USE_DAYS, tenant_context, tenant_rows
from controlplane.errors import InvalidInputError
from controlplane.operations.export import export_download
from controlplane.operations.selectors import deletion_get, deletion_list
from controlplane.operations.services import tenant_deletion_cancel, tenant_deletion_schedule
from controlplane.platform.mail_links import link_shown
from controlplane.tenants.limits.services import prepaid_stop_set
from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import tenant_get, tenant_list
from controlplane.tenants.services import tenant_create, tenant_resume, tenant_suspend

SHOWN: Final = 100
_MOST: Final = (("name", "name", 200), ("owner", "email", 254))
"""Input, its error field, longest text."""


@staff_page("GET", "POST")
def tenants(request: HttpRequest) -> HttpResponse:
    """List and search tenants, with the running deletions; POST creates a tenant."""
    values = {name: request.POST.get(name, "").strip() for name in ("id", "name", "owner")}
    errors = FormErrors(request, conflict_field="id")
    if request.method == "POST":
        with errors:
            made = _create(request, values)
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
    }
    return errors.render("staff/tenants.html", context)


@transaction.atomic
def _create(request: HttpRequest, values: dict[str, str]) -> Tenant:
    """Create a tenant, and invite its first owner if one is named. Raises ControlPlaneError."""
    for name, field, most in _MOST:
        if len(values[name]) > most:
            raise InvalidInputError(_("at most %(most)s characters") % {"most": most}, field=field)
    made = tenant_create(slug=values["id"], name=values["name"])
    if values["owner"]:
        invitation = invitation_create(
            tenant=made, email=values["owner"], role=Role.OWNER, invited_by=page_user(request)
        )
        if link := link_shown(reverse("console:invitation", args=(invitation_token(invitation),))):
            text = _("Invitation link sent to %(email)s: %(link)s")
            messages.info(request, text % {"email": invitation.email, "link": link})
    return made


@staff_page("GET")
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one tenant: usage, spend, keys, adapters, members, invoices, limits, and the actions on it."""
    return render(request, "staff/tenant.html", tenant_context(request, tenant_get(slug=slug)))


@staff_page("POST")
def prepaid(request: HttpRequest, slug: str) -> HttpResponse:
    """Set whether the tenant's calls stop when its prepaid credit is used up."""
    found = tenant_get(slug=slug)
    stops = request.POST.get("stops") == "true"
    prepaid_stop_set(tenant=found, stops=stops)
    ending = _("Requests of %(tenant)s are rejected at zero balance.")
    text = ending if stops else _("Requests of %(tenant)s continue at zero balance.")
    messages.success(request, text % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@staff_page("POST")
def top_up(request: HttpRequest, slug: str) -> HttpResponse:
    """Book a deposit or a credit; a form that is sent twice counts once."""
    found = tenant_get(slug=slug)
    with RefusalMessage(request):
        _book_once(request, found)
        messages.success(request, _("Recorded for %(tenant)s.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


def _book_once(request: HttpRequest, found: Tenant) -> None:
    sent, is_credit = posted(request, CreditInput), request.POST.get("what") == "credit"
    if not is_credit:
        sent["expires_on"] = ""
    amount = nano_entered(request.POST.get("amount", ""), field="amount")
    values = parsed(CreditInput, {**sent, "amount_nano": amount})
    parts = (found.pk, str(is_credit), *(f"{name}={value}" for name, value in sorted(values.items())))
    with booked_once(request, what="top-up", parts=parts) as is_first:
        if is_first and is_credit:
            credit_grant(tenant=found, **values)
        elif is_first:
            payment_record(tenant=found, amount_nano=amount, memo=values.get("note", ""))


@staff_page("GET")
def export(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Download all data of the tenant as a tar archive."""
    return export_download(request, tenant_get(slug=slug))


@staff_page("POST")
def suspend(request: HttpRequest, slug: str) -> HttpResponse:
    """Suspend the tenant's calls."""
    found = tenant_get(slug=slug)
    with RefusalMessage(request):
        tenant_suspend(tenant=found, reason=request.POST.get("reason", ""))
        messages.success(request, _("Tenant %(tenant)s was suspended.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@staff_page("POST")
def resume(request: HttpRequest, slug: str) -> HttpResponse:
    """Resume the tenant's calls."""
    found = tenant_get(slug=slug)
    with RefusalMessage(request):
        tenant_resume(tenant=found)
        messages.success(request, _("Tenant %(tenant)s was resumed.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)


@staff_page("POST")
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    """Disable the tenant, and schedule its deletion after the grace period."""
    found = tenant_get(slug=slug)
    with RefusalMessage(request):
        confirm, reason = (request.POST.get(name, "") for name in ("confirm", "reason"))
        deletion = tenant_deletion_schedule(tenant=found, confirm=confirm, reason=reason)
        text = _("Tenant %(tenant)s was disabled. It is purged on %(day)s.")
        messages.success(request, text % {"tenant": slug, "day": deletion.purge_after.date()})
    return redirect("console:staff-tenant", slug=slug)


@staff_page("POST")
def cancel(request: HttpRequest, slug: str) -> HttpResponse:
    """Cancel the deletion."""
    found = deletion_get(slug=slug)
    with RefusalMessage(request):
        tenant_deletion_cancel(deletion=found)
        messages.success(request, _("Tenant %(tenant)s was restored.") % {"tenant": slug})
    return redirect("console:staff-tenant", slug=slug)
