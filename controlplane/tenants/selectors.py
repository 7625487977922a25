"""Reads of tenants, members, projects, service accounts and keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from django.db.models import QuerySet

from contracts.keys import KEY_PREFIX
from controlplane.errors import NotFoundError
from controlplane.platform.row_security.name_search import API_KEY_NAMES, named
from controlplane.platform.row_security.scope import scope_set
from controlplane.tenants.models import ApiKey, Project, ServiceAccount, Tenant, User


def tenant_list() -> QuerySet[Tenant]:
    """List all tenants by id."""
    return Tenant.objects.order_by("id")


def tenant_get(*, slug: str) -> Tenant:
    """Return the tenant. Raises NotFoundError."""
    tenant = Tenant.objects.filter(pk=slug).first()
    if tenant is None:
        raise NotFoundError(f"there is no tenant {slug!r}")
    return tenant


def tenants_of(*, user: User) -> QuerySet[Tenant]:
    """List the tenants of a user by id, without disabled ones."""
    return Tenant.objects.filter(memberships__user=user, disabled_at=None).order_by("id")


def user_list() -> QuerySet[User]:
    """List all users by e-mail address."""
    return User.objects.prefetch_related("memberships").order_by("email")


def project_list(*, tenant: Tenant) -> QuerySet[Project]:
    """List the tenant's projects by slug, archived ones too."""
    return Project.objects.filter(tenant=tenant)


def project_get(*, tenant: Tenant, slug: str) -> Project:
    """Return the project. Raises NotFoundError, also for another tenant's."""
    project = project_list(tenant=tenant).filter(slug=slug).first()
    if project is None:
        raise NotFoundError(f"tenant {tenant.pk} has no project {slug!r}")
    return project


def service_account_list(*, tenant: Tenant) -> QuerySet[ServiceAccount]:
    """List the tenant's service accounts by name, disabled ones too."""
    return ServiceAccount.objects.filter(tenant=tenant).select_related("project")


def service_account_get(*, tenant: Tenant, name: str) -> ServiceAccount:
    """Return the service account. Raises NotFoundError, also for another tenant's."""
    account = service_account_list(tenant=tenant).filter(name=name).first()
    if account is None:
        raise NotFoundError(f"tenant {tenant.pk} has no service account {name!r}")
    return account


def api_key_list(*, tenant: Tenant) -> QuerySet[ApiKey]:
    """List the tenant's keys, newest first, revoked ones too."""
    return ApiKey.objects.filter(tenant=tenant).select_related("project", "service_account", "created_by")


def api_key_names(*, tenant: str, public_ids: Iterable[str]) -> dict[str, str]:
    """Return the names of the tenant's keys by public id; unknown ids are left out."""
    found = ApiKey.objects.filter(tenant=tenant, pk__in=set(public_ids)).order_by()
    return dict(found.values_list("pk", "name"))


def api_key_named(keys: QuerySet[ApiKey], part: str) -> QuerySet[ApiKey]:
    """Filter keys by names that contain `part`, ignoring case."""
    return named(keys, API_KEY_NAMES, part)


def api_key_get(*, tenant: Tenant, public_id: str) -> ApiKey:
    """Return the key. Raises NotFoundError, also for another tenant's."""
    api_key = api_key_list(tenant=tenant).filter(pk=public_id).first()
    if api_key is None:
        raise NotFoundError(f"tenant {tenant.pk} has no key {public_id!r}")
    return api_key


def api_key_verify(*, text: str) -> ApiKey | None:
    """Return the live key for `text` (`gw_<public id>_<secret>`), or None if it is not valid."""
    prefix, _, rest = text.partition("_")
    public_id, _, secret = rest.partition("_")
    scope_set(key=public_id)
    api_key = ApiKey.objects.filter(pk=public_id).first()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    expected = api_key.secret_sha256 if api_key else "0" * 64
    matches = hmac.compare_digest(digest, expected)
    if api_key and api_key.old_secret_is_live:
        matches |= hmac.compare_digest(digest, api_key.old_secret_sha256)
    if api_key is None or not (matches and prefix == KEY_PREFIX and api_key.is_live):
        return None
    # The secret is verified, so the row scope may now include the key's tenant.
    scope_set(tenant=api_key.tenant_id)
    proven = ApiKey.objects.select_related("tenant", "project", "service_account").get(pk=public_id)
    if proven.tenant.disabled_at is not None:
        scope_set(tenant="")
        return None
    return proven
