"""Sign-up: a link verifies the e-mail address, then the tenant and its owner are created."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.adapters.quotas import quota_set
from controlplane.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.http.throttling import take_daily
from controlplane.platform.queue import enqueue
from controlplane.sign_up.models import SignUp
from controlplane.sign_up.selectors import sign_up_domains, sign_up_offered
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import tenant_create, user_create

LIFETIME: Final = dt.timedelta(hours=24)
QUIET: Final = dt.timedelta(minutes=15)
"""Time after a link in which no other is sent: anyone can request one, which voids the previous link."""
PER_EMAIL_DAILY: Final = 5
"""Most links a day to one e-mail address."""
_MEGABYTE: Final = 10**6
SEND: Final = "sign_up.send"
RETRY_AFTER: Final = dt.timedelta(minutes=2)
"""Time after which a sending attempt counts as failed; longer than the mail server's time limit."""


@transaction.atomic
def sign_up_begin(*, email: str) -> SignUp:
    """Send a link to the address, unless one was sent within `QUIET`.

    The result does not reveal whether the address has an account; only the e-mail does.

    Raises:
        InvalidInputError: the e-mail address is malformed.
        ForbiddenError: sign-up is off, or not open to the address's domain.
        ConflictError: the address was sent `PER_EMAIL_DAILY` links today.
    """
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError as error:
        raise InvalidInputError("enter an e-mail address such as name@example.com", field="email") from error
    _check_domain(email)
    until = timezone.now() + LIFETIME
    if recent := SignUp.objects.filter(email=email, expires_at__gt=until - QUIET).first():
        return recent
    if take_daily(f"sign-up:mail:{email}", per_day=PER_EMAIL_DAILY):
        raise ConflictError(
            f"{email} was sent {PER_EMAIL_DAILY} links today: use the latest one, or try again tomorrow"
        )
    fresh = {"nonce": secrets.token_hex(16), "expires_at": until}
    sign_up, _ = SignUp.objects.update_or_create(
        email=email, defaults={**fresh, "attempted_at": None, "sent_at": None}
    )
    enqueue(SEND, sign_up_id=sign_up.pk)
    return sign_up


@transaction.atomic
def sign_up_complete(*, sign_up: SignUp, slug: str, name: str, password: str) -> tuple[User, Tenant]:
    """Create the tenant, with the limits of GRAFTWORK_SIGN_UP_*, and its owner.

    Raises:
        InvalidInputError: the id is malformed, or the password is not acceptable.
        ConflictError: the id is taken, or the address has an account by now.
        ForbiddenError: its domain may no longer sign up.
        NotFoundError: the link was used meanwhile.
    """
    _check_domain(sign_up.email)
    # Deleting the row is the claim: the second of two concurrent clicks finds the link used.
    if not SignUp.objects.filter(pk=sign_up.pk, nonce=sign_up.nonce).delete()[0]:
        raise NotFoundError("this link was already used: log in")
    tenant = tenant_create(slug=slug.strip(), name=name)
    user = user_create(email=sign_up.email, password=password, tenant=tenant, role=Role.OWNER)
    _limit(tenant)
    audit_record(tenant=tenant.pk, action="tenant.sign_up", target=tenant, after={"email": user.email})
    return user, tenant


def _limit(tenant: Tenant) -> None:
    config = settings.GRAFTWORK
    tenant_limits_set(
        tenant=tenant,
        requests_per_minute=config.sign_up_requests_per_minute,
        tokens_per_minute=config.sign_up_tokens_per_minute,
        concurrency=config.sign_up_concurrency,
    )
    quota_set(
        tenant=tenant, adapters=config.sign_up_adapters, size_bytes=config.sign_up_adapter_mb * _MEGABYTE
    )


def sign_up_claim(*, sign_up_id: int) -> SignUp | None:
    """Claim the sending of a sign-up's link; None if it is sent, void, or being sent."""
    now = timezone.now()
    free = Q(attempted_at=None) | Q(attempted_at__lt=now - RETRY_AFTER)
    unsent = SignUp.objects.filter(free, pk=sign_up_id, sent_at=None, expires_at__gt=now)
    if not sign_up_offered() or not unsent.update(attempted_at=now):
        return None
    return SignUp.objects.filter(pk=sign_up_id).first()


def sign_up_sent(*, sign_up: SignUp) -> None:
    """Record that the link was sent, unless a newer one has replaced it."""
    SignUp.objects.filter(pk=sign_up.pk, nonce=sign_up.nonce).update(sent_at=timezone.now())


def sign_ups_forget() -> int:
    """Delete expired sign-ups; return how many."""
    return SignUp.objects.filter(expires_at__lte=timezone.now()).delete()[0]


def _check_domain(email: str) -> None:
    domains = sign_up_domains()
    if not sign_up_offered():
        raise ForbiddenError("sign-up is disabled: ask for an invitation")
    if domains and email.rpartition("@")[2] not in domains:
        raise ForbiddenError(
            f"sign up with an e-mail address of {', '.join(domains)}, or ask for an invitation"
        )
