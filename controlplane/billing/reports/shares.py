"""Divides a whole number by weights so that the parts add up to it exactly."""

from __future__ import annotations

from collections.abc import Mapping


def divide(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide `total` in proportion to `weights`, by largest remainders; the parts add up to it exactly.

    Each part differs from its exact share by less than one. Of equal remainders the first name gets the odd
    unit, so the same weights always give the same parts.

    Args:
        total: 0 or more.
        weights: 0 or more each; if all are 0, they count as equal.

    Raises ValueError for a negative number, and for a total above 0 without weights.
    """
    if total < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError("amounts and weights must be 0 or more")
    if not weights:
        if total:
            raise ValueError(f"cannot divide {total} without weights")
        return {}
    claims = weights if any(weights.values()) else dict.fromkeys(weights, 1)
    whole = sum(claims.values())
    parts = {name: total * weight // whole for name, weight in claims.items()}
    remainders = sorted(claims, key=lambda name: (-(total * claims[name] % whole), name))
    for name in remainders[: total - sum(parts.values())]:
        parts[name] += 1
    return parts
