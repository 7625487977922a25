"""Permission classes of REST routes. Each route has `tenant_may(...)`, `Staff` or `UsageReporter`."""

from __future__ import annotations

from typing import ClassVar, Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.errors import NotFoundError
from controlplane.platform.row_security.scope import EVERYTHING, scope_set
from controlplane.tenants.access import Access, key_access, user_access
from controlplane.tenants.models import ApiKey, StaffToken, Tenant, User
from controlplane.tenants.roles import Permission

TENANT_HEADER: Final = "X-Graftwork-Tenant"
"""Header with the tenant that a person acts for; default is the session's choice, then the first."""

_READS: Final = ("GET", "HEAD", "OPTIONS")


class TenantPermission(BasePermission):
    """Allows members whose role has the permission, and keys that have it by their scopes.

    Attributes:
        read, write: permission for GET, and for the other methods.
        staff_writes: only staff may write; staff may read without a tenant.
    """

    read: ClassVar[Permission]
    write: ClassVar[Permission]
    staff_writes: ClassVar[bool] = False

    def has_permission(self, request: Request, view: APIView) -> bool:
        needed = self.read if request.method in _READS else self.write
        if self.staff_writes and Staff().has_permission(request, view):
            return True
        access = request_access(request)
        if access is None:
            self.message = "this requires an API key with scope manage, or a logged-in member of a tenant"
            return False
        if access.only is not None and not access.may(needed):
            self.message = f"this requires the permission {needed}: use an API key with scope manage"
            return False
        if self.staff_writes and request.method not in _READS:
            self.message = "tenants can read this; only logged-in staff can change it"
            return False
        self.message = f"this requires the permission {needed}, which the role {access.role} does not have"
        return access.may(needed)


def tenant_may(read: Permission, write: Permission | None = None) -> type[TenantPermission]:
    """Return the permission class of a route for tenants, with its permissions to read and write.

    Args:
        write: omitted if the route only reads.
    """
    return type("TenantMay", (TenantPermission,), {"read": read, "write": write or read})


def tenant_reads_staff_writes(read: Permission) -> type[TenantPermission]:
    """Return the permission class of a route that tenants may read with `read` and only staff may write."""
    return type("TenantReads", (TenantPermission,), {"read": read, "write": read, "staff_writes": True})


class Staff(BasePermission):
    """Allows staff members with a session or a personal access token; no tenant's API key suffices."""

    message = "only staff can do this, by a session or a staff token; not API keys"

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not (isinstance(request.user, User) and request.user.is_staff):
            return False
        scope_set(tenant=EVERYTHING)
        return True


class StaffSession(Staff):
    """Allows staff members with a session alone."""

    message = "only logged-in staff can do this, not tokens or API keys"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return not isinstance(request.auth, StaffToken) and super().has_permission(request, view)


class UsageReporter(BasePermission):
    """Allows API keys with scope `usage:write`; no session suffices."""

    message = "this requires an API key with scope usage:write, which only keys of service accounts can have"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.auth, ApiKey) and ApiKey.Scope.USAGE_WRITE in request.auth.scopes


def request_access(request: Request) -> Access | None:
    """Return the request's tenant and role, or None; cached on the request."""
    if not hasattr(request, "tenant_access"):
        request.tenant_access = _access(request)  # type: ignore[attr-defined]
    access: Access | None = request.tenant_access  # type: ignore[attr-defined]
    return access


def request_tenant(request: Request) -> Tenant:
    """Return the tenant for which the request acts.

    Raises:
        NotFoundError: the person is a member of no tenant.
    """
    access = request_access(request)
    if access is None:
        raise NotFoundError("you are a member of no tenant")
    return access.tenant


def visible_tenant(request: Request) -> str | None:
    """Return the slug of the tenant whose rows the request may see; None for staff, who see all tenants'.

    Raises:
        NotFoundError: the person is a member of no tenant.
    """
    if isinstance(request.user, User) and request.user.is_staff:
        return None
    return request_tenant(request).pk


def request_user(request: Request) -> User | None:
    """Return the request's user; None for an API key."""
    return request.user if isinstance(request.user, User) else None


def _access(request: Request) -> Access | None:
    if isinstance(request.auth, ApiKey):
        return key_access(request.auth)
    if not isinstance(request.user, User):
        return None
    named = request.headers.get(TENANT_HEADER)
    return user_access(user=request.user, preferred=named or request.session.get("tenant"))
