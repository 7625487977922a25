"""Reads of the sign-up policy and of pending sign-ups."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.core import signing
from django.utils import timezone

from controlplane.errors import NotFoundError
from controlplane.platform.environment import SIGN_UP_OFF, SIGN_UP_OPEN
from controlplane.sign_up.models import SignUp

SALT: Final = "controlplane.sign_up"
_VOID: Final = "this link is invalid: it was used or has expired. Sign up again"
_NEWER: Final = "this link is invalid: a newer one was sent to the same address. Open that one"


def sign_up_offered() -> bool:
    """Return True unless GRAFTWORK_SIGN_UP is off."""
    return bool(settings.GRAFTWORK.sign_up != SIGN_UP_OFF)


def sign_up_domains() -> tuple[str, ...]:
    """Return the e-mail domains that may sign up; empty if all may, or nobody."""
    rule: str = settings.GRAFTWORK.sign_up
    return () if rule in (SIGN_UP_OFF, SIGN_UP_OPEN) else tuple(rule.split(","))


def sign_up_token(sign_up: SignUp) -> str:
    """Return the signed token for the link in the e-mail."""
    return signing.dumps([sign_up.pk, sign_up.nonce], salt=SALT)


def sign_up_by_token(*, token: str) -> SignUp:
    """Return the open sign-up of a signed token.

    Raises:
        NotFoundError: the token is forged, used, replaced by a newer one, or expired.
    """
    try:
        pk, nonce = signing.loads(token, salt=SALT)
    except (signing.BadSignature, ValueError):
        raise NotFoundError(_VOID) from None
    sign_up = SignUp.objects.filter(pk=pk).first()
    if sign_up is None or not sign_up.is_open:
        raise NotFoundError(_VOID)
    if sign_up.nonce != nonce:
        raise NotFoundError(_NEWER)
    return sign_up


def sign_ups_unsent() -> list[int]:
    """List the ids of open sign-ups whose link has not been sent, oldest first."""
    unsent = SignUp.objects.filter(sent_at=None, expires_at__gt=timezone.now())
    return list(unsent.order_by("pk").values_list("pk", flat=True))
