"""Seals idempotent requests for Redis: keyed hashes of names and bodies, and an encrypted answer."""

from __future__ import annotations

import hashlib
import hmac
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.http.asgi import Header

MAX_ANSWER_BYTES: Final = 4 << 20
"""Larger answers are not kept."""
_NONCE_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer with HTTP 200 as sent, without the headers of that delivery."""

    headers: Sequence[Header]
    body: bytes


class Unreadable(ValueError):
    """A sealed answer that this secret does not open, or that was altered."""


class Seal:
    """AES-256-GCM and HMAC-SHA256, with keys derived from the fleet's secret (RFC 5869)."""

    def __init__(self, secret: str) -> None:
        self._cipher = AESGCM(_derive(secret, b"answers"))
        self._print_key = _derive(secret, b"prints")

    def name(self, *parts: str) -> str:
        """Return a keyed hash of `parts`, which reveals none of them."""
        return self._digest(b"name", orjson.dumps(parts)).hex()

    def fingerprint(self, body: bytes) -> bytes:
        """Return a keyed hash of the body, equal for equal bodies."""
        return self._digest(b"body", body)

    def close(self, name: str, answer: StoredAnswer) -> bytes:
        """Encrypt the answer, bound to `name`: it does not open under another name."""
        head = [[key.decode("latin-1"), value.decode("latin-1")] for key, value in answer.headers]
        text = zlib.compress(orjson.dumps(head) + b"\n" + answer.body, 1)
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text, name.encode())

    def open(self, name: str, sealed: bytes) -> StoredAnswer:
        """Decrypt an answer. Raises Unreadable."""
        try:
            text = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError) as error:
            raise Unreadable("the answer is sealed with another secret") from error
        head, _, body = zlib.decompress(text).partition(b"\n")
        headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in orjson.loads(head)]
        return StoredAnswer(headers, body)

    def _digest(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(self._print_key, purpose + b"\0" + data, hashlib.sha256)


def _derive(secret: str, purpose: bytes) -> bytes:
    info = b"graftwork gateway idempotency: " + purpose
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret.encode())
