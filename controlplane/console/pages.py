"""Access to pages, and what every page's template needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from controlplane.errors import ForbiddenError, NotFoundError
from controlplane.platform.row_security.scope import EVERYTHING, scope_set
from controlplane.tenants.access import Access, user_access
from controlplane.tenants.models import User
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenants_of

SESSION_TENANT = "tenant"
"""Session key of the last visited tenant; only the URL decides which tenant's page is shown."""

_OWN = 5
"""Most own tenants in the menu of staff pages."""

View = Callable[..., HttpResponseBase]


def signed_in(view: View) -> View:
    """Send visitors to the login page, also within an htmx request."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if isinstance(request.user, User):
            return view(request, *args, **kwargs)
        if settings.SESSION_COOKIE_NAME in request.COOKIES:
            messages.warning(request, _("Your session has expired. Log in to continue."))
        if request.headers.get("HX-Request") == "true":
            login = redirect_to_login(_page_of_address(request, "HX-Current-URL"))
            return HttpResponse(status=204, headers={"HX-Redirect": login["Location"]})
        if request.method in ("GET", "HEAD"):
            return redirect_to_login(request.get_full_path())
        return redirect_to_login(_page_of_address(request, "Referer"))

    return wrapper


def _page_of_address(request: HttpRequest, header: str) -> str:
    """Return path and query of the page in a header; the entry page for a foreign or missing one."""
    here = urlsplit(request.headers.get(header, ""))
    if not here.path or here.netloc not in ("", request.get_host()):
        return reverse("console:entry")
    return f"{here.path}?{here.query}" if here.query else here.path


def tenant_page(*, read: Permission | None = None, write: Permission | None = None) -> Callable[[View], View]:
    """Pass the tenant in the URL to the view, for members whose role has the permission.

    Another's tenant and an unknown one are the same 404, so that ids cannot be probed.

    Args:
        read, write: permissions for GET and for POST; a method without one is refused with 405.
    """
    needs = {method: needed for method, needed in (("GET", read), ("POST", write)) if needed}

    def decorate(view: View) -> View:
        @require_http_methods(list(needs))
        @signed_in
        @wraps(view)
        def wrapper(request: HttpRequest, tenant: str, **kwargs: Any) -> HttpResponseBase:
            access = user_access(user=page_user(request), preferred=tenant)
            if access is None:
                return render(request, "console/no_access.html", {"slug": tenant}, status=404)
            return _page_of(request, access, needs[str(request.method)], view, kwargs)

        wrapper.permissions = needs  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _page_of(
    request: HttpRequest, access: Access, needed: Permission, view: View, arguments: dict[str, Any]
) -> HttpResponseBase:
    if request.session.get(SESSION_TENANT) != access.tenant.pk:
        request.session[SESSION_TENANT] = access.tenant.pk
    request.access, request.tenant = access, access.tenant  # type: ignore[attr-defined]
    if not access.may(needed):
        return render(request, "console/not_permitted.html", {"needed": needed}, status=403)
    try:
        return view(request, access.tenant, **arguments)
    except NotFoundError as error:
        raise Http404(str(error)) from error
    except ForbiddenError as error:
        return render(request, "console/not_permitted.html", {"reason": str(error)}, status=403)


def page_access(request: HttpRequest) -> Access:
    """Return the member's access to the tenant; only within `tenant_page`."""
    access: Access = request.access  # type: ignore[attr-defined]
    return access


def page_user(request: HttpRequest) -> User:
    """Return the signed-in user; only within a page for users."""
    assert isinstance(request.user, User)
    return request.user


def staff_page(*methods: str) -> Callable[[View], View]:
    """Decorate a staff page, which belongs to no tenant and takes `methods`. For others it is a 404."""

    def decorate(view: View) -> View:
        @require_http_methods(list(methods))
        @signed_in
        @wraps(view)
        def wrapper(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
            if not page_user(request).is_staff:
                raise Http404
            scope_set(tenant=EVERYTHING)
            request.is_staff_page = True  # type: ignore[attr-defined]
            try:
                return view(request, **kwargs)
            except NotFoundError as error:
                raise Http404(str(error)) from error

        return wrapper

    return decorate


@signed_in
def entry(request: HttpRequest) -> HttpResponse:
    """`/`: redirect to the last visited tenant, staff first to the operator's overview.

    A user without a tenant gets an explanation.
    """
    user, visited = page_user(request), request.session.get(SESSION_TENANT)
    access = user_access(user=user, preferred=visited) or user_access(user=user)
    if user.is_staff and (access is None or visited is None):
        return redirect("console:staff-home")
    if access is None:
        return render(request, "console/no_tenant.html")
    return redirect("console:home", tenant=access.tenant.pk)


def shell(request: HttpRequest) -> dict[str, object]:
    """Return every page's context: tenant, permissions, tenants to switch to, theme, nonce.

    A staff page belongs to no tenant: `own_tenants` are those that its user is a member of.

    `may` holds each permission's name with an underscore for its dot: `{% if may.keys_write %}`.
    """
    user, tenant = getattr(request, "user", None), getattr(request, "tenant", None)
    access: Access | None = getattr(request, "access", None)
    is_staff_page = getattr(request, "is_staff_page", False)
    theme = request.COOKIES.get("theme")
    return {
        "tenant": tenant,
        "role": access.role if access else "",
        "may": {name.replace(".", "_"): True for name in access.permissions} if access else {},
        "tenants": tenants_of(user=user) if tenant and isinstance(user, User) else (),
        "own_tenants": tenants_of(user=user)[:_OWN] if is_staff_page and isinstance(user, User) else (),
        "theme": theme if theme in ("light", "dark") else "",
        "csp_nonce": getattr(request, "csp_nonce", ""),
    }
