"""Who may call a REST route. Each route states one of these: `tenant_may(...)`, `Staff` or
`UsageReporter`."""

from __future__ import annotations

from typing import ClassVar, Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.errors import NotFoundError
from controlplane.platform.row_security.scope import EVERYTHING, scope_set
from controlplane.tenants.access import Access, key_access, user_access
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.roles import Permission

TENANT_HEADER: Final = "X-Graftwork-Tenant"
"""Names the tenant that a person with several acts for; else the web UI's choice, else the first."""

_READS: Final = ("GET", "HEAD", "OPTIONS")


class TenantPermission(BasePermission):
    """A member of a tenant whose role has the permission, or a key that has it by its scopes.

    Attributes:
        read, write: what GET needs, and what the other methods do.
        staff_writes: only staff may change it, and needs no tenant to read it.
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
            self.message = "this needs an API key with scope manage, or a login of a tenant's member"
            return False
        if access.only is not None and not access.may(needed):
            self.message = f"this needs the permission {needed}: an API key with scope manage has it"
            return False
        if self.staff_writes and request.method not in _READS:
            self.message = "tenants may read this; only staff, logged in, may change it"
            return False
        self.message = f"this needs the permission {needed}, which the role {access.role} does not have"
        return access.may(needed)


def tenant_may(read: Permission, write: Permission | None = None) -> type[TenantPermission]:
    """The permission class of a route about a tenant's things: what reading them needs, and changing them.

    Args:
        write: left out where the route only reads.
    """
    return type("TenantMay", (TenantPermission,), {"read": read, "write": write or read})


def tenant_reads_staff_writes(read: Permission) -> type[TenantPermission]:
    """The permission class of a route that tenants may read with `read` and only staff may change."""
    return type("TenantReads", (TenantPermission,), {"read": read, "write": read, "staff_writes": True})


class Staff(BasePermission):
    """A staff member's session; no API key suffices."""

    message = "only staff may do this, logged in, not by API key"

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not (isinstance(request.user, User) and request.user.is_staff):
            return False
        scope_set(tenant=EVERYTHING)
        return True


class UsageReporter(BasePermission):
    """An API key with scope `usage:write`; nobody's session suffices."""

    message = "this needs an API key with scope usage:write, which a service account's key may have"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.auth, ApiKey) and ApiKey.Scope.USAGE_WRITE in request.auth.scopes


def request_access(request: Request) -> Access | None:
    """For which tenant the request acts and with which role; None for none. Looked up once a request."""
    if not hasattr(request, "tenant_access"):
        request.tenant_access = _access(request)  # type: ignore[attr-defined]
    access: Access | None = request.tenant_access  # type: ignore[attr-defined]
    return access


def request_tenant(request: Request) -> Tenant:
    """The tenant whose things this request is about.

    Raises:
        NotFoundError: a person who is a member of none.
    """
    access = request_access(request)
    if access is None:
        raise NotFoundError("you are a member of no tenant")
    return access.tenant


def request_user(request: Request) -> User | None:
    """The person behind the request; None for an API key."""
    return request.user if isinstance(request.user, User) else None


def _access(request: Request) -> Access | None:
    if isinstance(request.auth, ApiKey):
        return key_access(request.auth)
    if not isinstance(request.user, User):
        return None
    named = request.headers.get(TENANT_HEADER)
    return user_access(user=request.user, preferred=named or request.session.get("tenant"))
