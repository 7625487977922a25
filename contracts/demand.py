"""How gateways report the requests that they hold for a base model without a running copy."""

from __future__ import annotations

from typing import Final

DEMAND: Final = "graftwork:demand:"
"""Prefix of Redis hashes, one per base model: by gateway process, `<requests held> <Redis's seconds>`."""
DEMAND_SECONDS: Final = 3.0
"""How long an entry counts after its time."""


def demand_key(base: str) -> str:
    """Return the name of the hash that counts the requests held for base model `base`."""
    return DEMAND + base


def read_demand(value: bytes) -> tuple[int, float]:
    """Parse a hash value into (requests held, Unix seconds); (0, 0.0) if it is malformed."""
    held, _, at = value.partition(b" ")
    try:
        return int(held), float(at)
    except ValueError:
        return 0, 0.0
