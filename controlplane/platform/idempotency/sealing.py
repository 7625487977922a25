"""Digests of idempotency keys and encryption of stored responses, unreadable without the client's key."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

_NONCE_BYTES: Final = 12


def key_digest(*, scope: str, key: str) -> str:
    """Return the primary key of the row for a caller's key."""
    secret = _derived(b"graftwork control plane idempotency row")
    return hmac.new(secret, f"{scope}\0{key}".encode(), hashlib.sha256).hexdigest()


def fingerprint(parts: Iterable[bytes]) -> str:
    """Return a digest that identifies a request; keyed, so that a password in a body cannot be guessed."""
    digest = hmac.new(_derived(b"graftwork control plane idempotency request"), digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def seal(plain: bytes, *, digest: str, key: str) -> bytes:
    """Encrypt with AES-256-GCM under a key derived from the client's key and our secret key."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(_answer_key(key)).encrypt(nonce, plain, digest.encode())


def unseal(sealed: bytes, *, digest: str, key: str) -> bytes:
    """Decrypt. Raises cryptography.exceptions.InvalidTag if GRAFTWORK_SECRET_KEY has changed since."""
    return AESGCM(_answer_key(key)).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], digest.encode())


def _answer_key(key: str) -> bytes:
    return _derived(b"graftwork control plane idempotent answer", salt=key.encode())


def _derived(purpose: bytes, salt: bytes | None = None) -> bytes:
    return HKDF(SHA256(), length=32, salt=salt, info=purpose).derive(settings.SECRET_KEY.encode())
