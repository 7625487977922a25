"""For which tenant a caller acts, and what it may do there."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.errors import ForbiddenError
from controlplane.row_security.scope import scope_set
from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from controlplane.tenants.roles import GRANTS, Permission, Role


@dataclass(frozen=True, slots=True)
class Access:
    """A tenant, and the caller's role in it.

    Attributes:
        only: what of the role's permissions the caller has; None for all of them.
        project: slug of the one whose usage the caller may read; None for all of the tenant's.
    """

    tenant: Tenant
    role: Role
    only: frozenset[Permission] | None = None
    project: str | None = None

    @property
    def permissions(self) -> frozenset[Permission]:
        """All that the caller may do."""
        return GRANTS[self.role] if self.only is None else GRANTS[self.role] & self.only

    def may(self, permission: Permission) -> bool:
        """Whether the caller has `permission`."""
        return permission in self.permissions


def user_access(*, user: User, preferred: str | None = None) -> Access | None:
    """What `user` may do in `preferred`, or, with none given, in the first of their tenants.

    None when the user is a member of no tenant, or not of `preferred`.
    """
    scope_set(user=str(user.pk))
    memberships = Membership.objects.filter(user=user, tenant__disabled_at=None)
    memberships = memberships.select_related("tenant").order_by("tenant_id")
    member = (memberships.filter(tenant_id=preferred) if preferred else memberships).first()
    if member is None:
        return None
    scope_set(tenant=member.tenant_id)
    return Access(member.tenant, Role(member.role))


def key_access(api_key: ApiKey) -> Access | None:
    """What a key may do by the REST API: with scope `manage` its service account's role, else an engineer's;
    with scope `usage` read what its project used. None with neither.
    """
    if ApiKey.Scope.MANAGE not in api_key.scopes:
        if ApiKey.Scope.USAGE not in api_key.scopes:
            return None
        only = frozenset({Permission.USAGE_READ})
        return Access(api_key.tenant, Role.VIEWER, only=only, project=api_key.project.slug)
    if api_key.service_account_id is None:
        return Access(api_key.tenant, Role.ENGINEER)
    assert api_key.service_account is not None
    return Access(api_key.tenant, Role(api_key.service_account.role))


def check_grant(by: Access | None, role: Role) -> None:
    """Nobody hands out, or takes away, more than they have themselves.

    Args:
        by: who would; None for the operator's own processes, which may.

    Raises:
        ForbiddenError: the role has a permission that `by` lacks.
    """
    if by is not None and (missing := sorted(GRANTS[role] - by.permissions)):
        raise ForbiddenError(f"as {by.role} you cannot deal with the role {role}: you lack {missing[0]}")
