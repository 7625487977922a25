"""Changes of tenants, users and keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from controlplane.errors import ConflictError, InvalidInputError
from controlplane.routes.selectors import route_paths
from controlplane.routes.services import route_remove, route_set
from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from gateway.wire import KEY_PREFIX, KeyRoute, TenantRoute
from worker_engine.protocol import SLUG_PATTERN


@transaction.atomic
def tenant_create(*, slug: str, name: str) -> Tenant:
    """Makes a tenant and publishes it.

    Raises:
        InvalidInputError: `slug` is no slug.
        ConflictError: the slug is taken.
    """
    if SLUG_PATTERN.fullmatch(slug) is None:
        raise InvalidInputError(
            "a tenant's id is 1-63 lower-case letters, digits and inner hyphens", field="id"
        )
    if Tenant.objects.filter(pk=slug).exists():
        raise ConflictError(f"there is a tenant {slug!r} already: choose another id")
    tenant = Tenant.objects.create(pk=slug, name=name.strip() or slug, cache_salt=secrets.token_hex(16))
    route_set(path=f"tenants/{slug}", entry=TenantRoute(tenant.name, tenant.cache_salt))
    return tenant


@transaction.atomic
def user_create(
    *,
    email: str,
    password: str,
    tenant: Tenant | None = None,
    role: str = Membership.Role.OWNER,
    is_staff: bool = False,
) -> User:
    """Makes a user, a member of `tenant` when given.

    Raises:
        InvalidInputError: the e-mail, password or role is not acceptable.
        ConflictError: the e-mail is taken.
    """
    email = email.strip().lower()
    _check(validate_email, email, field="email")
    _check(validate_password, password, field="password")
    if role not in Membership.Role.values:
        raise InvalidInputError(f"role must be one of {', '.join(Membership.Role.values)}", field="role")
    if User.objects.filter(email=email).exists():
        raise ConflictError(f"there is a user {email} already")
    user = User.objects.create_user(email, password, is_staff=is_staff, is_superuser=is_staff)
    if tenant is not None:
        Membership.objects.create(user=user, tenant=tenant, role=role)
    return user


@transaction.atomic
def api_key_create(
    *,
    tenant: Tenant,
    name: str,
    scopes: Sequence[str],
    created_by: User | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Makes a key and publishes it; the text returned is never to be had again.

    Raises:
        InvalidInputError: no name, unknown scopes, or an expiry that has passed.
    """
    if not name.strip():
        raise InvalidInputError("a key needs a name that tells what uses it", field="name")
    wanted = sorted(set(scopes))
    if not wanted or set(wanted) - set(ApiKey.Scope.values):
        raise InvalidInputError(f"scopes must be some of {', '.join(ApiKey.Scope.values)}", field="scopes")
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInputError("expires_at must lie in the future", field="expires_at")
    secret = secrets.token_hex(24)
    api_key = ApiKey.objects.create(
        public_id=secrets.token_hex(6),
        tenant=tenant,
        name=name.strip(),
        secret_sha256=hashlib.sha256(secret.encode()).hexdigest(),
        scopes=wanted,
        expires_at=expires_at,
        created_by=created_by,
    )
    if ApiKey.Scope.INFERENCE in wanted:
        expiry = None if expires_at is None else expires_at.timestamp()
        route = KeyRoute(tenant.pk, api_key.secret_sha256, api_key.project, expiry)
        route_set(path=f"keys/{api_key.pk}", entry=route)
    return api_key, f"{KEY_PREFIX}_{api_key.pk}_{secret}"


@transaction.atomic
def api_key_revoke(*, api_key: ApiKey) -> ApiKey:
    """Ends the key, everywhere within a second; a second call changes nothing."""
    if ApiKey.objects.filter(pk=api_key.pk, revoked_at=None).update(revoked_at=timezone.now()):
        route_remove(path=f"keys/{api_key.pk}")
    api_key.refresh_from_db()
    return api_key


def api_keys_unroute_expired() -> int:
    """Takes keys that have expired out of the route table, where they would stay for ever; how many.

    Gateways refuse an expired key by its time; this is about the table's size alone.
    """
    expired = ApiKey.objects.filter(expires_at__lte=timezone.now(), revoked_at=None)
    paths = {f"keys/{public_id}" for public_id in expired.values_list("pk", flat=True)}
    stale = sorted(route_paths(paths=paths))
    for path in stale:
        route_remove(path=path)
    return len(stale)


def _check(validator: object, value: str, *, field: str) -> None:
    try:
        validator(value)  # type: ignore[operator]
    except ValidationError as error:
        raise InvalidInputError(" ".join(error.messages), field=field) from error
