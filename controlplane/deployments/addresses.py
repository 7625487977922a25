"""Check AWS regions and base URLs of servers."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from controlplane.errors import InvalidInputError

REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]")
"""An AWS region's name."""


def base_url(text: str, *, field: str = "url") -> str:
    """Return an HTTP server's base URL without `/v1`. Raises InvalidInputError for anything else."""
    parts = urlsplit(text.strip().rstrip("/").removesuffix("/v1"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInputError(f"{field} must be like http://host:port, got {text!r}", field=field)
    if parts.username or parts.password:
        raise InvalidInputError(
            f"{field} must carry no credentials: workers take the fleet token", field=field
        )
    return parts.geturl()
