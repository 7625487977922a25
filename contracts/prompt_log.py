"""Prompt logs of tenants: their Redis stream and how each entry is sealed."""

from __future__ import annotations

from typing import Final

PROMPT_STREAM: Final = "graftwork:prompts"
"""Redis stream, one entry a logged request, fields `tenant`, `request` (its id), `at` (Unix milliseconds) and
`sealed`."""
PROMPT_FORM: Final = b"\x01"
"""First byte of a sealed record. Then come 8 bytes of the tenant's X25519 key, the record's own key (32), a
nonce (12) and the ciphertext: AES-256-GCM of zlib-compressed JSON, bound to `<tenant>/<request id>`. Its key
is HKDF-SHA256 of the shared secret, salted with the record's key and the tenant's."""
PROMPT_INFO: Final = b"graftwork kept prompt"
