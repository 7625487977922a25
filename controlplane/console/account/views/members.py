"""Members of a tenant and those invited: the list, roles, removal, invitations."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.pages import page_access, page_user, tenant_page
from controlplane.console.paging import page_of, searched
from controlplane.platform.mail_links import link_shown
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.members.selectors import (
    invitation_get,
    invitation_list,
    invitation_token,
    member_by_email,
    member_get,
)
from controlplane.tenants.members.services import (
    invitation_create,
    invitation_resend,
    invitation_revoke,
    member_remove,
    member_set_role,
)
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import GRANTS, Permission, Role

INVITATIONS: Final = 50
"""Most invitations on the page, the newest."""


@tenant_page(read=Permission.MEMBERS_READ, write=Permission.MEMBERS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List members and open invitations; the form invites."""
    values, errors = {"email": "", "role": Role.ENGINEER.value}, FormErrors(request, conflict_field="email")
    if request.method == "POST":
        values = {name: request.POST.get(name, "") for name in values}
        with errors:
            invitation = invitation_create(
                tenant=tenant, by=page_access(request), invited_by=page_user(request), **values
            )
            messages.success(
                request, _("An invitation link is sent to %(email)s.") % {"email": invitation.email}
            )
            return redirect("console:members", tenant=tenant.pk)
    held, search = page_access(request).permissions, searched(request) if request.method == "GET" else ""
    page = page_of(request, member_by_email(tenant=tenant, part=search))
    invitations = list(invitation_list(tenant=tenant)[: INVITATIONS + 1])
    context = {
        "members": [(member, GRANTS[Role(member.role)] <= held) for member in page.rows],
        "page": page,
        "search": search,
        "invitations": [
            (invitation, GRANTS[Role(invitation.role)] <= held, _link(invitation))
            for invitation in invitations[:INVITATIONS]
        ],
        "invitations_more": len(invitations) > INVITATIONS,
        "roles": [role for role in Role if GRANTS[role] <= held],
        "values": values,
    }
    return errors.render("console/members.html", context)


def _link(invitation: Invitation) -> str:
    """Return the e-mail's link if pages may show it, else ""; also "" for an expired invitation."""
    path = reverse("console:invitation", args=(invitation_token(invitation),))
    return link_shown(path) if invitation.is_open else ""


@tenant_page(write=Permission.MEMBERS_WRITE)
def set_role(request: HttpRequest, tenant: Tenant, user_id: int) -> HttpResponse:
    """Change a member's role."""
    member_get(tenant=tenant, user_id=user_id)
    with RefusalMessage(request):
        member = member_set_role(
            tenant=tenant, user_id=user_id, role=request.POST.get("role", ""), by=page_access(request)
        )
        text = _("%(email)s now has the role %(role)s.")
        messages.success(request, text % {"email": member.user.email, "role": Role(member.role).label})
    return redirect("console:members", tenant=tenant.pk)


@tenant_page(write=Permission.MEMBERS_WRITE)
def remove(request: HttpRequest, tenant: Tenant, user_id: int) -> HttpResponse:
    """Remove a member and end their sessions."""
    email = member_get(tenant=tenant, user_id=user_id).user.email
    with RefusalMessage(request):
        member_remove(tenant=tenant, user_id=user_id, by=page_access(request))
        messages.success(request, _("%(email)s was removed and logged out.") % {"email": email})
    return redirect("console:members", tenant=tenant.pk)


@tenant_page(write=Permission.MEMBERS_WRITE)
def resend(request: HttpRequest, tenant: Tenant, invitation_id: int) -> HttpResponse:
    """Send a new link, which replaces the earlier one."""
    invitation = invitation_get(tenant=tenant, invitation_id=invitation_id)
    with RefusalMessage(request):
        invitation_resend(invitation=invitation, by=page_access(request))
        messages.success(
            request, _("A new invitation link is sent to %(email)s.") % {"email": invitation.email}
        )
    return redirect("console:members", tenant=tenant.pk)


@tenant_page(write=Permission.MEMBERS_WRITE)
def revoke(request: HttpRequest, tenant: Tenant, invitation_id: int) -> HttpResponse:
    """Withdraw an invitation."""
    invitation = invitation_get(tenant=tenant, invitation_id=invitation_id)
    with RefusalMessage(request):
        invitation_revoke(invitation=invitation, by=page_access(request))
        text = _("The invitation of %(email)s was revoked.")
        messages.success(request, text % {"email": invitation.email})
    return redirect("console:members", tenant=tenant.pk)
