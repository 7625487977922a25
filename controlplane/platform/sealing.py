"""Secrets at rest: sealed under GRAFTWORK_SEALING_KEYS, each bound to the place that it is kept in."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from controlplane.errors import UnsealError


def seal(secret: str, *, place: str) -> str:
    """The secret as text for the database.

    Args:
        place: names the one row and column that keeps it; opened for another it fails.
    """
    return _keys(place).encrypt(secret.encode()).decode()


def unseal(sealed: str, *, place: str) -> str:
    """Raises UnsealError where no present key opens it, or it was sealed for another place."""
    try:
        return _keys(place).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise UnsealError(
            f"the secret of {place} cannot be opened: GRAFTWORK_SEALING_KEYS no longer holds the key that"
            " sealed it; enter the secret again"
        ) from error


def _keys(place: str) -> MultiFernet:
    """The first key seals, all open. Each place has keys of its own, so rows cannot be exchanged."""
    info = f"graftwork sealed {place}".encode()
    return MultiFernet(
        Fernet(base64.urlsafe_b64encode(HKDF(SHA256(), 32, salt=None, info=info).derive(key.encode())))
        for key in settings.GRAFTWORK.sealing_keys
    )
