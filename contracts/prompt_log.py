"""Prompts that a tenant keeps: their Redis stream and how each is sealed."""

from __future__ import annotations

from typing import Final

PROMPT_STREAM: Final = "graftwork:prompts"
"""Redis stream, one entry a request of a tenant that keeps prompts, fields `tenant`, `request` (its id), `at`
(Unix milliseconds) and `sealed`."""
PROMPT_FORM: Final = b"\x01"
"""First byte of what is sealed. Then come 8 bytes of the tenant's X25519 key, the record's own key (32), a
nonce (12) and AES-256-GCM of zlib's JSON, bound to `<tenant>/<request id>`; its key is HKDF-SHA256 of the
shared secret, salted with the record's key and the tenant's."""
PROMPT_INFO: Final = b"graftwork kept prompt"
