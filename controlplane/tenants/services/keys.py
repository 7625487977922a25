"""Creates, changes, rotates and revokes API keys, and publishes them to the gateways."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from contracts.keys import KEY_PREFIX, KeyRoute, KeyScope, OldSecret
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.routes.selectors import route_paths
from controlplane.routes.services import route_lock, route_remove, route_set
from controlplane.tenants.access import Access, check_key_grant
from controlplane.tenants.key_scopes import check_endpoints, check_models, check_networks
from controlplane.tenants.models import ApiKey, Project, ServiceAccount, Tenant, User

LONGEST_OVERLAP: Final = timedelta(days=90)
"""Longest time for which a key's previous secret may stay valid after a rotation."""
_USE_NOTED_EVERY: Final = timedelta(minutes=1)
"""A key in constant use is written to once in this time, not at each call."""


@transaction.atomic
def api_key_create(
    *,
    tenant: Tenant,
    name: str,
    scopes: Sequence[str],
    project: Project | None = None,
    service_account: ServiceAccount | None = None,
    by: Access | None = None,
    created_by: User | None = None,
    expires_at: datetime | None = None,
    allowed_models: Sequence[str] | None = None,
    allowed_endpoints: Sequence[str] | None = None,
    allowed_networks: Sequence[str] | None = None,
) -> tuple[ApiKey, str]:
    """Create and publish a key; return it with its text, which is not stored.

    Args:
        project: project of its usage; defaults to the service account's, or else to `default`.
        service_account: owner of the key, whose role it gets; None for a key without an account.
        by: the caller, who must have all permissions of the key; None for the operator's own processes.
        allowed_models, allowed_endpoints, allowed_networks: restrictions; None for no restriction.

    Raises:
        InvalidInputError: no name, unknown scopes, a past expiry, or a malformed restriction.
        ConflictError: an archived project, a disabled service account, or one of another project.
        ForbiddenError: `by` lacks a permission of the key's.
    """
    if not name.strip():
        raise InvalidInputError("name is required: describe what uses the key", field="name")
    requested = sorted(set(scopes))
    if not requested or set(requested) - set(ApiKey.Scope.values):
        raise InvalidInputError(
            f"scopes must be one or more of {', '.join(ApiKey.Scope.values)}", field="scopes"
        )
    secret, digest = _new_secret()
    api_key = ApiKey(
        public_id=secrets.token_hex(6),
        tenant=tenant,
        project=_usable_project(tenant, project, service_account),
        service_account=service_account,
        name=name.strip(),
        secret_sha256=digest,
        scopes=requested,
        expires_at=_check_future(expires_at, field="expires_at"),
        allowed_models=check_models(allowed_models),
        allowed_endpoints=check_endpoints(allowed_endpoints),
        allowed_networks=check_networks(allowed_networks),
        created_by=created_by,
    )
    if ApiKey.Scope.USAGE_WRITE in requested and service_account is None:
        raise InvalidInputError(
            "a key with scope usage:write must belong to a service account: create one for the source",
            field="scopes",
        )
    check_key_grant(by, api_key)
    api_key.save(force_insert=True)
    _publish(api_key)
    audit_record(tenant=tenant.pk, action="api_key.create", target=api_key, after=snapshot(api_key))
    return api_key, f"{KEY_PREFIX}_{api_key.pk}_{secret}"


@transaction.atomic
def api_key_update(*, api_key: ApiKey, by: Access | None = None, **changes: Any) -> ApiKey:
    """Change the key's expiry and restrictions, effective within a second.

    Args:
        changes: some of `expires_at`, `allowed_models`, `allowed_endpoints`, `allowed_networks`.

    Raises:
        InvalidInputError: a past expiry, or a malformed restriction.
        ConflictError: the key is revoked or expired.
        ForbiddenError: `by` lacks a permission of the key's.
    """
    check_key_grant(by, api_key)
    checks: dict[str, Callable[[Any], Any]] = {
        "expires_at": lambda value: _check_future(value, field="expires_at"),
        "allowed_models": check_models,
        "allowed_endpoints": check_endpoints,
        "allowed_networks": check_networks,
    }
    values = {name: checks[name](value) for name, value in changes.items()}
    return _change_live(api_key, "api_key.update", **values)


@transaction.atomic
def api_key_rotate(
    *, api_key: ApiKey, old_secret_until: datetime | None = None, by: Access | None = None
) -> tuple[ApiKey, str]:
    """Rotate the key's secret, effective within a second; return the key and its text, which is not stored.

    Args:
        old_secret_until: time until which the previous secret stays valid; None ends it now. An older secret
            of an earlier rotation always ends now.

    Raises:
        InvalidInputError: the time is in the past, or further ahead than LONGEST_OVERLAP.
        ConflictError: the key is revoked or expired.
        ForbiddenError: `by` lacks a permission of the key's.
    """
    check_key_grant(by, api_key)
    _check_future(old_secret_until, field="old_secret_until")
    now = timezone.now()
    if old_secret_until is not None and old_secret_until - now > LONGEST_OVERLAP:
        raise InvalidInputError(
            f"old_secret_until must be within {LONGEST_OVERLAP.days} days", field="old_secret_until"
        )
    secret, digest = _new_secret()
    overlaps = old_secret_until is not None
    changed = _change_live(
        api_key,
        "api_key.rotate",
        # F() reads the current value: of two concurrent rotations the second keeps the first's secret.
        old_secret_sha256=F("secret_sha256") if overlaps else "",
        old_secret_until=old_secret_until,
        secret_sha256=digest,
        rotated_at=now,
    )
    return changed, f"{KEY_PREFIX}_{changed.pk}_{secret}"


@transaction.atomic
def api_key_revoke(*, api_key: ApiKey, by: Access | None = None) -> ApiKey:
    """Revoke the key with both its secrets, effective within a second; a second call changes nothing.

    Raises:
        ForbiddenError: `by` lacks a permission of the key's.
    """
    check_key_grant(by, api_key)
    before = locked_snapshot(api_key)
    revoked = ApiKey.objects.filter(pk=api_key.pk, revoked_at=None).update(revoked_at=timezone.now())
    api_key.refresh_from_db()
    if revoked:
        route_remove(path=f"keys/{api_key.pk}")
        _record_change(api_key, "api_key.revoke", before)
    return api_key


@transaction.atomic
def api_keys_unroute_expired() -> int:
    """Remove expired keys from the route table, which would keep them for ever; return how many.

    Gateways refuse an expired key by its time; this only limits the table's size.
    """
    # The lock orders this with a change that extends a key's expiry and publishes the key again.
    route_lock()
    expired = ApiKey.objects.filter(expires_at__lte=timezone.now(), revoked_at=None)
    paths = {f"keys/{public_id}" for public_id in expired.values_list("pk", flat=True)}
    stale = sorted(route_paths(paths=paths))
    for path in stale:
        route_remove(path=path)
    return len(stale)


@transaction.atomic
def api_keys_revoke(*, keys: QuerySet[ApiKey]) -> int:
    """Revoke all of `keys` that are not revoked yet; return how many."""
    # Lock all rows before the first route: a concurrent revocation holds a row and waits for the routes.
    locked = list(keys.filter(revoked_at=None).order_by("pk").select_for_update(of=("self",)))
    for api_key in locked:
        api_key_revoke(api_key=api_key)
    return len(locked)


def api_keys_touch(*, used: Mapping[str, datetime]) -> int:
    """Notes uses of keys by public id; of unknown ones nothing. How many rows were written.

    Each row in a statement of its own, outside of any transaction: who changes a key is not kept waiting.
    """
    keys = ApiKey.objects.filter(pk__in=used).values_list("pk", "last_used_at")
    now, written = timezone.now(), 0
    for public_id, before in keys:
        at = min(used[public_id], now)  # a gateway's clock may be ahead
        if before is None or before < at - _USE_NOTED_EVERY:
            unseen = Q(last_used_at=None) | Q(last_used_at__lt=at)
            written += ApiKey.objects.filter(unseen, pk=public_id).update(last_used_at=at)
    return written


def _usable_project(tenant: Tenant, project: Project | None, account: ServiceAccount | None) -> Project:
    """Return the key's project. Locks it and the account, so that neither is disabled meanwhile."""
    if account is not None:
        account = ServiceAccount.objects.select_for_update(of=("self",)).get(pk=account.pk)
        if account.disabled_at is not None:
            raise ConflictError(f"service account {account.name} is disabled: choose another")
        if project is not None and project != account.project:
            raise ConflictError(f"service account {account.name} belongs to another project")
        project = account.project
    projects = Project.objects.select_for_update().filter(tenant=tenant, archived_at=None)
    found = projects.filter(slug=Project.DEFAULT) if project is None else projects.filter(pk=project.pk)
    if (usable := found.first()) is None:
        raise ConflictError("the project is archived: choose another")
    return usable


def _change_live(api_key: ApiKey, action: str, **values: Any) -> ApiKey:
    """Change a live key and publish it.

    The row stays locked until commit. A concurrent revocation either commits first and is respected here, or
    runs later and removes the published route.
    """
    before = locked_snapshot(api_key)
    live = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
    if values and not ApiKey.objects.filter(live, pk=api_key.pk).update(**values):
        raise ConflictError(f"key {api_key.pk} is revoked or expired: create a new one")
    api_key.refresh_from_db()
    if values:
        _publish(api_key)
        _record_change(api_key, action, before)
    return api_key


def _record_change(api_key: ApiKey, action: str, before: dict[str, Any]) -> None:
    after = snapshot(api_key)
    audit_record(tenant=api_key.tenant_id, action=action, target=api_key, before=before, after=after)


def _publish(api_key: ApiKey) -> None:
    """Publish a key with scope `inference` to the gateways."""
    if ApiKey.Scope.INFERENCE not in api_key.scopes:
        return
    restrictions = (api_key.allowed_models, api_key.allowed_endpoints, api_key.allowed_networks)
    scope = KeyScope(*(None if values is None else tuple(values) for values in restrictions))
    old = None
    if api_key.old_secret_sha256 and api_key.old_secret_until is not None:
        old = OldSecret(api_key.old_secret_sha256, api_key.old_secret_until.timestamp())
    route = KeyRoute(
        tenant=api_key.tenant_id,
        secret_sha256=api_key.secret_sha256,
        project=api_key.project.slug,
        expires_at=None if api_key.expires_at is None else api_key.expires_at.timestamp(),
        old=old,
        scope=None if scope == KeyScope() else scope,
    )
    route_set(path=f"keys/{api_key.pk}", entry=route)


def _new_secret() -> tuple[str, str]:
    """Return a new secret of 192 bits, and its digest."""
    secret = secrets.token_hex(24)
    return secret, hashlib.sha256(secret.encode()).hexdigest()


def _check_future(value: datetime | None, *, field: str) -> datetime | None:
    if value is not None and value <= timezone.now():
        raise InvalidInputError(f"{field} must be in the future", field=field)
    return value
