"""Reads of tenants, members and keys."""

from __future__ import annotations

import hashlib
import hmac

from django.db.models import QuerySet

from controlplane.errors import NotFoundError
from controlplane.tenants.models import ApiKey, Tenant, User


def tenant_list() -> QuerySet[Tenant]:
    """Every tenant, by id."""
    return Tenant.objects.order_by("id")


def tenant_get(*, slug: str) -> Tenant:
    """Raises NotFoundError."""
    tenant = Tenant.objects.filter(pk=slug).first()
    if tenant is None:
        raise NotFoundError(f"there is no tenant {slug!r}")
    return tenant


def tenants_of(*, user: User) -> QuerySet[Tenant]:
    """The tenants that `user` belongs to, by id."""
    return Tenant.objects.filter(memberships__user=user).order_by("id")


def tenant_of(*, user: User, preferred: str | None = None) -> Tenant | None:
    """The tenant that `user` acts for: `preferred` if a member of it, or, with none given, the first.

    None when the user is a member of no tenant, or not of `preferred`.
    """
    tenants = tenants_of(user=user)
    return (tenants.filter(pk=preferred) if preferred else tenants).first()


def user_list() -> QuerySet[User]:
    """Every user, by e-mail."""
    return User.objects.prefetch_related("memberships").order_by("email")


def api_key_list(*, tenant: Tenant) -> QuerySet[ApiKey]:
    """The tenant's keys, newest first, revoked ones too."""
    return ApiKey.objects.filter(tenant=tenant).select_related("created_by")


def api_key_get(*, tenant: Tenant, public_id: str) -> ApiKey:
    """Raises NotFoundError, also for another tenant's key."""
    api_key = ApiKey.objects.filter(tenant=tenant, pk=public_id).first()
    if api_key is None:
        raise NotFoundError(f"tenant {tenant.pk} has no key {public_id!r}")
    return api_key


def api_key_verify(*, text: str) -> ApiKey | None:
    """The live key that `text` (`gw_<public id>_<secret>`) proves, or None."""
    prefix, _, rest = text.partition("_")
    public_id, _, secret = rest.partition("_")
    api_key = ApiKey.objects.select_related("tenant").filter(pk=public_id).first()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    expected = api_key.secret_sha256 if api_key else "0" * 64
    matches = hmac.compare_digest(digest, expected) and prefix == "gw"
    return api_key if api_key and matches and api_key.is_live else None
