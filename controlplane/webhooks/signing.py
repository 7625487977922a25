"""Signatures of the Standard Webhooks scheme (standardwebhooks.com), whose libraries verify them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "whsec_"


def new_secret() -> str:
    """256 random bits, as the scheme writes them."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signed_headers(*, message_id: str, timestamp: int, body: bytes, keys: Sequence[str]) -> dict[str, str]:
    """`webhook-id`, `webhook-timestamp` (Unix seconds of this attempt) and a signature by each key.

    The signature covers all three, so that a receiver which refuses old times and ids that it has seen
    cannot be told the same thing twice.
    """
    text = f"{message_id}.{timestamp}.".encode() + body
    signatures = [_signature(key, text) for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def _signature(key: str, text: bytes) -> str:
    raw = base64.b64decode(key.removeprefix(PREFIX))
    return "v1," + base64.b64encode(hmac.new(raw, text, hashlib.sha256).digest()).decode()
