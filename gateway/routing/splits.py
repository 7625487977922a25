"""Which side a caller is on: the arm of a split alias, and old or new copies of a base model in a rollout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from contracts.base_routes import BaseRoute

_DRAWS = 1 << 64


def choose_arm(arms: Sequence[tuple[int, int]], subject: str) -> int:
    """The version that `subject` is on, by weighted rendezvous hashing (Schindelhauer and Schomaker, 2005).

    Each arm draws a number from the subject's name; the one whose exponential waiting time of rate `percent`
    is shortest wins, which it does in proportion to its percent. An arm whose percent grows while the others'
    do not keeps all whom it had, and what it gains it takes from the others alone.

    Args:
        arms: (version, percent), at least one with a percent above 0.
        subject: who is to stay on an arm: the same string, the same arm, on every gateway.
    """
    return min((arm for arm in arms if arm[1] > 0), key=lambda arm: _waiting_time(arm, subject))[0]


def _waiting_time(arm: tuple[int, int], subject: str) -> float:
    version, percent = arm
    digest = hashlib.blake2b(f"{version}\0{subject}".encode("utf-8", "replace"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest) + 1) / _DRAWS) / percent


def passed_over(route: BaseRoute, tenant: str, subject: str) -> tuple[str, ...]:
    """Ids of the copies that are not this caller's while a canary is tried: the new ones, or the others."""
    canary = route.canary
    if canary is None:
        return ()
    arms = ((0, 100 - canary.percent), (1, canary.percent))
    if choose_arm(arms, f"{canary.name}\0{tenant}\0{subject}"):
        return tuple(copy.id for copy in route.copies if copy.id not in canary.copies)
    return canary.copies
