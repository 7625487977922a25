"""Who may see a tenant's page, and how the errors of services become pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from controlplane.errors import ConflictError, ControlPlaneError, InvalidInputError, NotFoundError
from controlplane.tenants.models import User
from controlplane.tenants.selectors import tenant_of, tenants_of

SESSION_TENANT = "tenant"
"""Session key of the tenant last looked at; the address alone says whose page a page is."""


def signed_in(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Sends visitors to the login page, also from within an htmx request."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if isinstance(request.user, User):
            return view(request, *args, **kwargs)
        if request.headers.get("HX-Request") != "true":
            return redirect_to_login(request.get_full_path())
        here = urlsplit(request.headers.get("HX-Current-URL", ""))
        login = redirect_to_login(here.path or reverse("console:entry"))
        return HttpResponse(status=204, headers={"HX-Redirect": login["Location"]})

    return wrapper


def tenant_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Hands the view the tenant that its address names, to members only.

    Another's tenant and one that does not exist are the same 404, so that ids cannot be probed.
    """

    @signed_in
    @wraps(view)
    def wrapper(request: HttpRequest, tenant: str, **kwargs: Any) -> HttpResponse:
        assert isinstance(request.user, User)
        found = tenant_of(user=request.user, preferred=tenant)
        if found is None:
            return render(request, "console/no_access.html", {"slug": tenant}, status=404)
        if request.session.get(SESSION_TENANT) != found.pk:
            request.session[SESSION_TENANT] = found.pk
        request.tenant = found  # type: ignore[attr-defined]
        try:
            return view(request, found, **kwargs)
        except NotFoundError as error:
            raise Http404(str(error)) from error

    return wrapper


@signed_in
def entry(request: HttpRequest) -> HttpResponse:
    """`/`: on to the tenant last looked at; who has none is told what to do."""
    assert isinstance(request.user, User)
    preferred = tenant_of(user=request.user, preferred=request.session.get(SESSION_TENANT))
    tenant = preferred or tenant_of(user=request.user)
    if tenant is None:
        return render(request, "console/no_tenant.html")
    return redirect("console:home", tenant=tenant.pk)


def shell(request: HttpRequest) -> dict[str, object]:
    """Context of every page: the tenant, those to switch to, the theme, the script nonce."""
    user, tenant = getattr(request, "user", None), getattr(request, "tenant", None)
    theme = request.COOKIES.get("theme")
    return {
        "tenant": tenant,
        "tenants": tenants_of(user=user) if tenant and isinstance(user, User) else (),
        "theme": theme if theme in ("light", "dark") else "",
        "csp_nonce": getattr(request, "csp_nonce", ""),
    }


def field_errors(error: ControlPlaneError, *, conflict_field: str) -> dict[str, str]:
    """A service's refusal by form field, in the words of the REST API; raises what is no refusal."""
    match error:
        case InvalidInputError():
            return {error.field or conflict_field: str(error)}
        case ConflictError() | NotFoundError():
            return {conflict_field: str(error)}
        case _:
            return {"form": str(error)}
