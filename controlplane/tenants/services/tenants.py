"""Creates tenants and users."""

from __future__ import annotations

import secrets

from allauth.account.models import EmailAddress
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import F

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.selectors import chain_get
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.tenants.models import Membership, Project, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services.suspension import tenant_route_publish


@transaction.atomic
def tenant_create(*, slug: str, name: str) -> Tenant:
    """Create a tenant with its default project, and publish it.

    Raises:
        InvalidInputError: `slug` is malformed.
        ConflictError: the slug is taken.
    """
    if SLUG_PATTERN.fullmatch(slug) is None:
        raise InvalidInputError(
            "a tenant's id must be 1-63 lower-case letters, digits and inner hyphens", field="id"
        )
    taken = ConflictError(f"tenant {slug!r} already exists: choose another id")
    if Tenant.objects.filter(pk=slug).exists():
        raise taken
    if chain_get(tenant=slug).number:
        # The deleted tenant's usage and audit log are kept under that id, and would belong to the new one.
        raise ConflictError(f"tenant {slug!r} was deleted and its id cannot be reused: choose another id")
    tenant = Tenant(pk=slug, name=name.strip() or slug, cache_salt=secrets.token_hex(16))
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
    except IntegrityError:  # a concurrent request committed first
        raise taken from None
    Project.objects.create(tenant=tenant, slug=Project.DEFAULT, name=Project.DEFAULT.title())
    tenant_route_publish(tenant=tenant)
    audit_record(tenant=slug, action="tenant.create", target=tenant, after=snapshot(tenant))
    return tenant


@transaction.atomic
def user_create(
    *, email: str, password: str, tenant: Tenant | None = None, role: str = Role.OWNER, is_staff: bool = False
) -> User:
    """Create a user, and a membership if `tenant` is given.

    Raises:
        InvalidInputError: the e-mail, password or role is not acceptable.
        ConflictError: the e-mail is taken.
    """
    email = email.strip().lower()
    _check(validate_email, email, field="email")
    _check(validate_password, password, field="password")
    if role not in Role.values:
        raise InvalidInputError(f"role must be one of {', '.join(Role.values)}", field="role")
    taken = ConflictError(f"user {email} already exists")
    if User.objects.filter(email=email).exists():
        raise taken
    try:
        with transaction.atomic():
            user = User.objects.create_user(email, password, is_staff=is_staff, is_superuser=is_staff)
    except IntegrityError:  # a concurrent request committed first
        raise taken from None
    # An invitation's link or staff vouches for the address, so a login by the identity provider may match it.
    EmailAddress.objects.create(user=user, email=email, primary=True, verified=True)
    if tenant is not None:
        Membership.objects.create(user=user, tenant=tenant, role=role)
    after = {"email": email, "is_staff": is_staff, "role": role if tenant else None}
    audit_record(tenant=tenant.pk if tenant else "", action="user.create", target=user, after=after)
    return user


def user_end_sessions(*, user: User) -> None:
    """End all sessions of the user; each ends with its next request."""
    User.objects.filter(pk=user.pk).update(session_epoch=F("session_epoch") + 1)


def _check(validator: object, value: str, *, field: str) -> None:
    try:
        validator(value)  # type: ignore[operator]
    except ValidationError as error:
        raise InvalidInputError(" ".join(error.messages), field=field) from error
