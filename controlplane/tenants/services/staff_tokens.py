"""Creates, verifies and revokes personal access tokens of staff."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.tenants.models import StaffToken, User

PREFIX: Final = "gs"
LONGEST_LIFE: Final = timedelta(days=366)
MOST: Final = 50
"""Most live tokens of one person."""
_USE_NOTED_EVERY: Final = timedelta(minutes=1)


@transaction.atomic
def staff_token_create(*, user: User, name: str, scope: str, expires_at: datetime) -> tuple[StaffToken, str]:
    """Create a token; return it with its text, which is not stored.

    Raises:
        ForbiddenError: the user is no active staff member.
        InvalidInputError: no name, an unknown scope, or an expiry in the past or beyond LONGEST_LIFE.
        ConflictError: the user has MOST live tokens.
    """
    # The row's lock counts concurrent creations one after another.
    owner = User.objects.select_for_update(of=("self",)).get(pk=user.pk)
    if not (owner.is_staff and owner.is_active):
        raise ForbiddenError("only active staff members can have tokens")
    if not name.strip():
        raise InvalidInputError("name is required: describe what uses the token", field="name")
    if scope not in StaffToken.Scope.values:
        raise InvalidInputError(f"scope must be one of {', '.join(StaffToken.Scope.values)}", field="scope")
    now = timezone.now()
    if not now < expires_at <= now + LONGEST_LIFE:
        text = f"expires_at must be in the future, within {LONGEST_LIFE.days} days"
        raise InvalidInputError(text, field="expires_at")
    if owner.staff_tokens.filter(revoked_at=None, expires_at__gt=now).count() >= MOST:
        raise ConflictError(f"you have {MOST} tokens: revoke one first")
    secret = secrets.token_hex(24)
    token = StaffToken.objects.create(
        public_id=secrets.token_hex(6),
        user=owner,
        name=name.strip(),
        secret_sha256=_digest(secret),
        scope=scope,
        expires_at=expires_at,
    )
    audit_record(tenant="", action="staff_token.create", target=token, after=snapshot(token))
    return token, f"{PREFIX}_{token.pk}_{secret}"


def staff_token_get(*, user: User, public_id: str) -> StaffToken:
    """Return one of the user's tokens. Raises NotFoundError."""
    token = user.staff_tokens.filter(pk=public_id).first()
    if token is None:
        raise NotFoundError(f"you have no token {public_id!r}")
    return token


def staff_token_verify(*, text: str) -> StaffToken | None:
    """Return the valid token for `text` with its user, or None. Note the use."""
    prefix, _, rest = text.partition("_")
    public_id, _, secret = rest.partition("_")
    token = StaffToken.objects.select_related("user").filter(pk=public_id[:16]).first()
    matches = hmac.compare_digest(_digest(secret), token.secret_sha256 if token else "0" * 64)
    now = timezone.now()
    if token is None or not matches or prefix != PREFIX or token.revoked_at or token.expires_at <= now:
        return None
    if not (token.user.is_staff and token.user.is_active):
        return None
    unnoted = Q(last_used_at=None) | Q(last_used_at__lt=now - _USE_NOTED_EVERY)
    StaffToken.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)
    return token


@transaction.atomic
def staff_token_revoke(*, token: StaffToken) -> None:
    """Revoke the token at once; a second call changes nothing."""
    before = locked_snapshot(token)
    if StaffToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
        token.refresh_from_db()
        audit_record(
            tenant="", action="staff_token.revoke", target=token, before=before, after=snapshot(token)
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
