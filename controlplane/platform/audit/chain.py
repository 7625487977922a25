"""The digests that chain a tenant's records."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from controlplane.platform.audit.models import AuditRecord

ORIGIN: Final = "0" * 64
"""Predecessor digest of a tenant's first record."""

FIELDS: Final = (
    "tenant",
    "number",
    "actor_kind",
    "actor_id",
    "actor_name",
    "action",
    "target_type",
    "target_id",
    "target_name",
    "before",
    "after",
    "address",
    "user_agent",
    "request_id",
    "previous_sha256",
)
"""Fields that the digest covers, in addition to the time."""


def record_digest(record: AuditRecord) -> str:
    """SHA-256 in hex over the record as JSON: keys sorted, no spaces, ASCII, `at` in ISO 8601 (UTC)."""
    values = {name: getattr(record, name) for name in FIELDS}
    values["at"] = record.at.isoformat()
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
