"""How long an adapter stays on a copy after it left the routes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

KNOWN_AFTER: Final = timedelta(seconds=2)
"""Gateways learn of a change within a second. Running requests hold their adapter themselves. A request that
reaches a copy without its adapter loads it again, which costs only time."""


def leaves_at(now: datetime) -> datetime:
    """Return when an adapter that leaves the routes now may be dropped."""
    return now + KNOWN_AFTER
