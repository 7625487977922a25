"""The page of an invitation's link: joining the tenant with an existing or a new account."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth import login
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.console.form_errors import FormErrors
from controlplane.errors import ConflictError, NotFoundError
from controlplane.platform.row_security.scope import every_row
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.members.selectors import invitation_by_token
from controlplane.tenants.members.services import invitation_accept
from controlplane.tenants.models import User
from controlplane.tenants.selectors import user_by_email
from controlplane.tenants.services import user_create

_BACKEND = "django.contrib.auth.backends.ModelBackend"


@never_cache
@require_http_methods(["GET", "POST"])
def accept(request: HttpRequest, token: str) -> HttpResponse:
    """Show the invitation; only the button accepts it, since mail filters open links too."""
    try:
        invitation = invitation_by_token(token=token)
    except NotFoundError as error:
        return render(request, "console/invitation_void.html", {"reason": str(error)}, status=404)
    known = user_by_email(email=invitation.email) is not None
    errors = FormErrors(request)
    if request.method == "POST":
        with errors:
            return _join(request, invitation, known=known)
    context = {"invitation": invitation, "known": known, "path": request.path}
    return errors.render("console/invitation.html", context)


def _join(request: HttpRequest, invitation: Invitation, *, known: bool) -> HttpResponse:
    user = request.user
    if not isinstance(user, User):
        if known:
            raise ConflictError(_("log in first: there is an account for this address"))
        with transaction.atomic():
            with every_row():
                user = user_create(email=invitation.email, password=request.POST.get("password", ""))
            invitation_accept(invitation=invitation, user=user)
        login(request, user, backend=_BACKEND)
    else:
        invitation_accept(invitation=invitation, user=user)
    messages.success(request, _("Welcome to %(name)s.") % {"name": invitation.tenant.name})
    return redirect("console:home", tenant=invitation.tenant_id)
