"""Sign-up: an address, the e-mailed link, then a tenant with its owner. 404 while it is off."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth import login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.console.form_errors import FormErrors
from controlplane.errors import NotFoundError
from controlplane.platform.http.addresses import request_client
from controlplane.platform.http.throttling import take
from controlplane.platform.mail_links import link_shown
from controlplane.platform.row_security.scope import every_row
from controlplane.sign_up.models import SignUp
from controlplane.sign_up.selectors import sign_up_by_token, sign_up_domains, sign_up_offered, sign_up_token
from controlplane.sign_up.services import sign_up_begin, sign_up_complete
from controlplane.tenants.models import User

_BACKEND: Final = "django.contrib.auth.backends.ModelBackend"
_TYPED: Final = "sign-up"
"""Session key of form values whose link had become void."""
_MOST: Final = {"name": 200, "id": 64}
"""Longest texts of the form's fields, except the password."""
PER_ADDRESS: Final = 10
"""Most forms a minute from one client address."""
PER_EMAIL: Final = 2
"""Most links a minute to one e-mail address."""
EVERYBODY: Final = 60
"""Most links a minute in total, since strangers can have mail sent to any address."""


def _offered(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def wrapper(request: HttpRequest, **arguments: Any) -> HttpResponse:
        if not sign_up_offered():
            raise Http404("there is no such page here")
        if isinstance(request.user, User):
            return redirect("console:entry")
        return view(request, **arguments)

    return wrapper


@never_cache
@require_http_methods(["GET", "POST"])
@_offered
def begin(request: HttpRequest) -> HttpResponse:
    """Ask for an address; the answer does not reveal whether it has an account."""
    email = request.POST.get("email", "").strip().lower()[:254]
    errors, status = FormErrors(request, conflict_field="email"), 422
    if request.method == "POST":
        if _waits(request, f"mail:{email}", PER_EMAIL) or take("sign-up:all", per_minute=EVERYBODY):
            errors["email"], status = _("Too many attempts. Wait a minute, then try again."), 429
        else:
            with errors:
                sign_up = sign_up_begin(email=email)
                link = link_shown(reverse("console:sign-up-confirm", args=(sign_up_token(sign_up),)))
                return render(request, "account/sign_up_sent.html", {"email": email, "link": link})
    context = {"email": email, "domains": ", ".join(sign_up_domains())}
    return errors.render("account/sign_up.html", context, status=status)


@never_cache
@require_http_methods(["GET", "POST"])
@_offered
def confirm(request: HttpRequest, token: str) -> HttpResponse:
    """Show the page of the link. Only the button creates something, since mail filters open links too."""
    try:
        sign_up = sign_up_by_token(token=token)
    except NotFoundError as error:
        context = {"reason": str(error), "kept": request.method == "POST" and _keep(request)}
        return render(request, "account/sign_up_void.html", context, status=404)
    errors, status = FormErrors(request, conflict_field="id"), 422
    if request.method == "POST":
        if _waits(request, f"confirm:{sign_up.pk}", PER_ADDRESS):
            errors["form"], status = _("Too many attempts. Wait a minute, then try again."), 429
        else:
            with errors:
                return _complete(request, sign_up)
    values = request.POST if request.method == "POST" else request.session.get(_TYPED, {})
    context = {"sign_up": sign_up, "values": values}
    return errors.render("account/sign_up_confirm.html", context, status=status)


def _complete(request: HttpRequest, sign_up: SignUp) -> HttpResponse:
    name, slug = (request.POST.get(field, "")[:most] for field, most in _MOST.items())
    with every_row():
        user, tenant = sign_up_complete(
            sign_up=sign_up, slug=slug, name=name, password=request.POST.get("password", "")[:200]
        )
    request.session.pop(_TYPED, None)
    login(request, user, backend=_BACKEND)
    messages.success(request, _("Welcome to %(name)s.") % {"name": tenant.name})
    return redirect("console:home", tenant=tenant.pk)


def _keep(request: HttpRequest) -> bool:
    """Keep the form's values, except the password, in the session for another link's form.

    A new link voids the one whose form is open. Returns True if values were kept.
    """
    typed = {field: request.POST.get(field, "")[:most] for field, most in _MOST.items()}
    if not any(typed.values()) or _waits(request, "void", EVERYBODY):
        return False
    request.session[_TYPED] = typed
    return True


def _waits(request: HttpRequest, scope: str, per_minute: int) -> bool:
    """Return True if this client's address, or `scope`, has reached its limit."""
    client = take(f"sign-up:address:{request_client(request)}", per_minute=PER_ADDRESS)
    return bool(client or take(f"sign-up:{scope}", per_minute=per_minute))
