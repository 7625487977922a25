"""What a caller may do, and for which tenant. Each REST route states one of these."""

from __future__ import annotations

from typing import Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.errors import NotFoundError
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.selectors import tenant_of

TENANT_HEADER: Final = "X-Graftwork-Tenant"
"""Names the tenant that a person with several acts for; else the web UI's choice, else the first."""


class TenantManager(BasePermission):
    """A key with scope `manage`, or a person who is a member of a tenant."""

    message = "this needs an API key with scope manage, or a login of a tenant's member"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return _tenant(request) is not None


class Staff(BasePermission):
    """A staff member's session; no API key suffices."""

    message = "only staff may do this, logged in, not by API key"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, User) and request.user.is_staff


class StaffOrTenantReads(BasePermission):
    """Staff may do all, a tenant's manager may read."""

    message = "tenants may read this; only staff, logged in, may change it"

    def has_permission(self, request: Request, view: APIView) -> bool:
        if Staff().has_permission(request, view):
            return True
        return request.method in ("GET", "HEAD", "OPTIONS") and _tenant(request) is not None


def request_tenant(request: Request) -> Tenant:
    """The tenant whose things this request is about.

    Raises:
        NotFoundError: a person who is a member of none.
    """
    tenant = _tenant(request)
    if tenant is None:
        raise NotFoundError("you are a member of no tenant")
    return tenant


def request_user(request: Request) -> User | None:
    """The person behind the request; None for an API key."""
    return request.user if isinstance(request.user, User) else None


def _tenant(request: Request) -> Tenant | None:
    if isinstance(request.auth, ApiKey):
        return request.auth.tenant if ApiKey.Scope.MANAGE in request.auth.scopes else None
    if not isinstance(request.user, User):
        return None
    named = request.headers.get(TENANT_HEADER)
    return tenant_of(user=request.user, preferred=named or request.session.get("tenant"))
