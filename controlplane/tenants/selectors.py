"""Reads of tenants, members, projects, service accounts and keys."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Collection, Iterable

from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from contracts.keys import KEY_PREFIX
from controlplane.platform.row_lookup import row_get
from controlplane.platform.row_security.name_search import API_KEY_NAMES, named
from controlplane.platform.row_security.scope import scope_set
from controlplane.tenants.models import ApiKey, Membership, Project, ServiceAccount, Tenant, User


def tenant_list(*, search: str = "") -> QuerySet[Tenant]:
    """List the tenants whose id or name contains `search`, by id."""
    tenants = Tenant.objects.order_by("id")
    return tenants.filter(Q(pk__icontains=search) | Q(name__icontains=search)) if search else tenants


def tenant_get(*, slug: str) -> Tenant:
    """Return the tenant. Raises NotFoundError."""
    return row_get(Tenant.objects.filter(pk=slug), f"there is no tenant {slug!r}")


def tenant_list_suspended() -> QuerySet[Tenant]:
    """List the suspended tenants, the newest suspension first; without disabled ones."""
    return Tenant.objects.filter(suspended_at__isnull=False, disabled_at=None).order_by("-suspended_at")


def tenants_of(*, user: User) -> QuerySet[Tenant]:
    """List the tenants of a user by id, without disabled ones."""
    return Tenant.objects.filter(memberships__user=user, disabled_at=None).order_by("id")


def tenant_ids_of(*, user: User) -> list[str]:
    """List the ids of a user's tenants, disabled ones too."""
    members = Membership.objects.filter(user_id=user.pk)
    return list(members.order_by("tenant_id").values_list("tenant_id", flat=True))


def user_by_email(*, email: str) -> User | None:
    """Return the user with this e-mail address; None if there is none."""
    return User.objects.filter(email=email).first()


def project_list(*, tenant: Tenant, active: bool = False) -> QuerySet[Project]:
    """List the tenant's projects by slug; `active` leaves out archived ones."""
    projects = Project.objects.filter(tenant=tenant)
    return projects.filter(archived_at=None) if active else projects


def project_get(*, tenant: Tenant, slug: str) -> Project:
    """Return the project. Raises NotFoundError, also for another tenant's."""
    rows = project_list(tenant=tenant).filter(slug=slug)
    return row_get(rows, f"tenant {tenant.pk} has no project {slug!r}")


def service_account_list(*, tenant: Tenant, active: bool = False) -> QuerySet[ServiceAccount]:
    """List the tenant's service accounts by name; `active` leaves out disabled ones."""
    accounts = ServiceAccount.objects.filter(tenant=tenant).select_related("project")
    return accounts.filter(disabled_at=None) if active else accounts


def service_account_keys_list(*, tenant: Tenant) -> QuerySet[ServiceAccount]:
    """List the tenant's active service accounts, each with the number of its unrevoked `keys`."""
    keys = Count("api_keys", filter=Q(api_keys__revoked_at=None))
    return service_account_list(tenant=tenant, active=True).annotate(keys=keys)


def service_account_get(*, tenant: Tenant, name: str) -> ServiceAccount:
    """Return the service account. Raises NotFoundError, also for another tenant's."""
    rows = service_account_list(tenant=tenant).filter(name=name)
    return row_get(rows, f"tenant {tenant.pk} has no service account {name!r}")


def api_key_list(*, tenant: Tenant) -> QuerySet[ApiKey]:
    """List the tenant's keys, newest first, revoked ones too."""
    return ApiKey.objects.filter(tenant=tenant).select_related("project", "service_account", "created_by")


def api_key_list_current(*, tenant: Tenant) -> QuerySet[ApiKey]:
    """List the tenant's keys without expired keys of the playground, newest first."""
    return api_key_list(tenant=tenant).exclude(name=ApiKey.PLAYGROUND, expires_at__lte=timezone.now())


def api_key_list_expiring(*, tenant: Tenant, within: dt.timedelta) -> QuerySet[ApiKey]:
    """List the tenant's unrevoked keys that expire within this time, the earliest first."""
    now = timezone.now()
    keys = ApiKey.objects.filter(tenant=tenant, revoked_at=None, expires_at__range=(now, now + within))
    return keys.exclude(name=ApiKey.PLAYGROUND).order_by("expires_at")


def api_key_can_infer(*, tenant: Tenant, newest: int) -> bool:
    """Return True if one of the `newest` keys can call models; the playground's keys do not count."""
    keys = api_key_list(tenant=tenant).exclude(name=ApiKey.PLAYGROUND).select_related(None)
    return any(
        key.is_live and ApiKey.Scope.INFERENCE in key.scopes
        for key in keys.only("scopes", "revoked_at", "expires_at")[:newest]
    )


def api_key_counts(*, tenants: Collection[str]) -> dict[str, int]:
    """Count the live keys of these tenants, by tenant; tenants without any are left out. One query."""
    live = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
    # Clear the model's default order, which would be added to the grouping.
    rows = live.filter(tenant__in=tenants).order_by()
    return dict(rows.values_list("tenant").annotate(Count("pk")))


def api_key_names(*, tenant: str, public_ids: Iterable[str]) -> dict[str, str]:
    """Return the names of the tenant's keys by public id; unknown ids are left out."""
    found = ApiKey.objects.filter(tenant=tenant, pk__in=set(public_ids)).order_by()
    return dict(found.values_list("pk", "name"))


def api_key_named(keys: QuerySet[ApiKey], part: str) -> QuerySet[ApiKey]:
    """Filter keys by names that contain `part`, ignoring case."""
    return named(keys, API_KEY_NAMES, part)


def api_key_get(*, tenant: Tenant, public_id: str) -> ApiKey:
    """Return the key. Raises NotFoundError, also for another tenant's."""
    rows = api_key_list(tenant=tenant).filter(pk=public_id)
    return row_get(rows, f"tenant {tenant.pk} has no key {public_id!r}")


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
