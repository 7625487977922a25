"""How gateways report the requests that they hold for a base model without a running copy."""

from __future__ import annotations

from typing import Final

DEMAND: Final = "graftwork:demand:"
"""Beginning of Redis hashes, one a base model: by gateway process, `<requests held> <Redis's seconds>`."""
DEMAND_SECONDS: Final = 3.0
"""How long what a gateway says there counts."""


def demand_key(base: str) -> str:
    """The hash that says how many requests are held for base model `base`."""
    return DEMAND + base


def read_demand(value: bytes) -> tuple[int, float]:
    """(requests held, Unix seconds) of a hash's value; nothing of what is malformed."""
    held, _, at = value.partition(b" ")
    try:
        return int(held), float(at)
    except ValueError:
        return 0, 0.0
