"""How long an adapter stays where requests may still be sent to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

KNOWN_AFTER: Final = timedelta(seconds=2)
"""Gateways learn of a change within a second. Requests that run hold their adapter themselves; one that is
sent to where it was dropped loads it again, which costs time and nothing else."""


def leaves_at(now: datetime) -> datetime:
    """When what leaves the routes now may be dropped."""
    return now + KNOWN_AFTER
