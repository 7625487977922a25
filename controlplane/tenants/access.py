"""The tenant for which a caller acts, and its permissions there."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.errors import ForbiddenError
from controlplane.platform.row_security.scope import scope_set
from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from controlplane.tenants.roles import GRANTS, Permission, Role


@dataclass(frozen=True, slots=True)
class Access:
    """A tenant, and the caller's role in it.

    Attributes:
        only: subset of the role's permissions that the caller has; None for all of them.
        project: slug of the only project whose usage the caller may read; None for all of the tenant's.
    """

    tenant: Tenant
    role: Role
    only: frozenset[Permission] | None = None
    project: str | None = None

    @property
    def permissions(self) -> frozenset[Permission]:
        """The caller's permissions."""
        return GRANTS[self.role] if self.only is None else GRANTS[self.role] & self.only

    def may(self, permission: Permission) -> bool:
        """Return True if the caller has `permission`."""
        return permission in self.permissions


def user_access(*, user: User, preferred: str | None = None) -> Access | None:
    """Return the user's access to tenant `preferred`, or to their first tenant if None.

    Returns None if the user is a member of no tenant, or not of `preferred`.
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
    """Return a key's access to the REST API.

    Scope `manage` gives the role of its service account, or engineer. Scope `usage` gives reading of its
    project's usage. Returns None with neither.
    """
    if ApiKey.Scope.MANAGE not in api_key.scopes:
        if ApiKey.Scope.USAGE not in api_key.scopes:
            return None
        only = frozenset({Permission.USAGE_READ})
        return Access(api_key.tenant, Role.VIEWER, only=only, project=api_key.project.slug)
    return Access(api_key.tenant, _managing_role(api_key))


def may_change_key(by: Access, api_key: ApiKey) -> bool:
    """Return True if `by` may rotate, change, limit and revoke the key: the same rule for all of them."""
    return by.may(Permission.KEYS_WRITE) and _key_permissions(api_key) <= by.permissions


def check_key_grant(by: Access | None, api_key: ApiKey) -> None:
    """Refuse to make or change a key that grants more than the caller has.

    Args:
        by: the caller; None for the operator's own processes, which may change every key.

    Raises:
        ForbiddenError: the key grants a permission that `by` lacks.
    """
    if by is not None and (missing := sorted(_key_permissions(api_key) - by.permissions)):
        raise ForbiddenError(
            f"your role {by.role} cannot create or change this key: it grants {missing[0]}, which you lack"
        )


def check_grant(by: Access | None, role: Role) -> None:
    """Refuse to grant or revoke a role with permissions that the caller lacks.

    Args:
        by: the caller; None for the operator's own processes, which may grant every role.

    Raises:
        ForbiddenError: the role has a permission that `by` lacks.
    """
    if by is not None and (missing := sorted(GRANTS[role] - by.permissions)):
        raise ForbiddenError(f"your role {by.role} cannot manage the role {role}: you lack {missing[0]}")


def _managing_role(api_key: ApiKey) -> Role:
    account = api_key.service_account
    return Role.ENGINEER if account is None else Role(account.role)


def _key_permissions(api_key: ApiKey) -> frozenset[Permission]:
    """Permissions that a caller needs to make or change the key: those that it grants its holder."""
    needed: frozenset[Permission] = frozenset()
    if ApiKey.Scope.MANAGE in api_key.scopes:
        needed |= GRANTS[_managing_role(api_key)]
    if ApiKey.Scope.USAGE_WRITE in api_key.scopes:
        # The usage that such a key reports is billed, also to other tenants where the account may.
        needed |= {Permission.SERVICE_ACCOUNTS_WRITE}
    return needed
