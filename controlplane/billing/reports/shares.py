"""Divides a whole number among many so that the parts are its exact sum."""

from __future__ import annotations

from collections.abc import Mapping


def divide(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """`total` in proportion to `weights`, by largest remainders: the parts add up to it exactly.

    No part is off its exact share by one or more. Of equal remainders the first name has the odd unit, so the
    same weights always give the same parts.

    Args:
        total: 0 or more.
        weights: 0 or more each; where all are 0 nobody has a claim, and each has the same weight.

    Raises ValueError for a negative number, and for a total to divide among nobody.
    """
    if total < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError("only numbers of 0 or more can be divided, by weights of 0 or more")
    if not weights:
        if total:
            raise ValueError(f"{total} cannot be divided among nobody")
        return {}
    claims = weights if any(weights.values()) else dict.fromkeys(weights, 1)
    whole = sum(claims.values())
    parts = {name: total * weight // whole for name, weight in claims.items()}
    remainders = sorted(claims, key=lambda name: (-(total * claims[name] % whole), name))
    for name in remainders[: total - sum(parts.values())]:
        parts[name] += 1
    return parts
