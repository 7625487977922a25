"""Secrets at rest: sealed under GRAFTWORK_SEALING_KEYS, each bound to its row and column."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from controlplane.errors import UnsealError


def seal(secret: str, *, place: str) -> str:
    """Return the secret sealed as text for the database.

    Args:
        place: name of the row and column; the secret opens for this place only.
    """
    return _keys(place).encrypt(secret.encode()).decode()


def unseal(sealed: str, *, place: str) -> str:
    """Return the secret. Raises UnsealError if no key opens it, or its place differs."""
    try:
        return _keys(place).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise UnsealError(
            f"the secret of {place} cannot be opened: GRAFTWORK_SEALING_KEYS no longer holds the key "
            f"that"
            " sealed the secret; enter the secret again"
        ) from error


def _keys(place: str) -> MultiFernet:
    """Return the keys: the first one seals, all open. Keys differ by place, so rows cannot be exchanged."""
    info = f"graftwork sealed {place}".encode()
    return MultiFernet(
        Fernet(base64.urlsafe_b64encode(HKDF(SHA256(), 32, salt=None, info=info).derive(key.encode())))
        for key in settings.GRAFTWORK.sealing_keys
    )
