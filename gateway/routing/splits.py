"""Assigns callers to sides: an arm of a split alias, or old and new copies in a rollout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from contracts.base_routes import BaseRoute

_DRAWS = 1 << 64


def choose_arm(arms: Sequence[tuple[int, int]], subject: str) -> int:
    """Return the version that `subject` gets, by weighted rendezvous hashing (Schindelhauer, Schomaker 2005).

    Each arm draws a number from the subject's name; the arm with the shortest exponential waiting time of
    rate `percent` wins, and so wins in proportion to its percent. If one arm's percent grows and the others'
    do not, it keeps all its subjects and gains some from the others.

    Args:
        arms: (version, percent), at least one with a percent above 0.
        subject: keeps its arm: the same string gets the same arm on every gateway.
    """
    return min((arm for arm in arms if arm[1] > 0), key=lambda arm: _waiting_time(arm, subject))[0]


def _waiting_time(arm: tuple[int, int], subject: str) -> float:
    version, percent = arm
    digest = hashlib.blake2b(f"{version}\0{subject}".encode("utf-8", "replace"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest) + 1) / _DRAWS) / percent


def passed_over(route: BaseRoute, tenant: str, subject: str) -> tuple[str, ...]:
    """Return the ids of copies that this caller avoids during a canary: the new copies, or the others."""
    canary = route.canary
    if canary is None:
        return ()
    arms = ((0, 100 - canary.percent), (1, canary.percent))
    if choose_arm(arms, f"{canary.name}\0{tenant}\0{subject}"):
        return tuple(copy.id for copy in route.copies if copy.id not in canary.copies)
    return canary.copies
