"""Metered usage of each side of a deployment's rollout: the new copies and the old ones."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.db.models import Count, Q, Sum

from controlplane.canaries.statistics import Arm
from controlplane.deployments.models import DeploymentRollout
from controlplane.metering.selectors import copy_attempts, latencies_ms

_MAX_LATENCIES: Final = 5000
_CHEAP_S: Final = 0.25
"""Seconds below which a query is not worth caching."""
_CACHE_FACTOR: Final = 20
"""A result is cached for this multiple of its query time. Pages poll every 2 s, so a web process spends at
most a twentieth of its time on the events of a long canary."""
_MAX_CACHED: Final = 100


@dataclass(frozen=True, slots=True)
class Side:
    """Attempts at the copies of one side since the rollout began, with times to first token.

    Attributes:
        copies: ids of the side's copies, removed ones included.
    """

    side: Literal["new", "old"]
    copies: tuple[str, ...]
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    p50_ms: float | None
    p95_ms: float | None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class _CachedSides:
    """A cached result and its expiry by the monotonic clock; `key` is the state that it belongs to."""

    key: tuple[Any, ...]
    sides: list[Side]
    until: float


_cache: dict[int, _CachedSides] = {}


def rollout_sides(*, rollout: DeploymentRollout) -> list[Side]:
    """Return the usage of (new, old) copies until the rollout's end. On SageMaker all copies are `old`.

    A slow query's result is cached for twenty times its duration, unless the copies change or the rollout
    ends.
    """
    key = (rollout.created_at, rollout.ended_at, repr(rollout.copies))
    cached = _cache.get(rollout.pk)
    if cached is not None and cached.key == key:
        if time.monotonic() < cached.until:
            return cached.sides
        # Extend the expired result, so that one request recomputes it while the others still use it.
        cached.until = float("inf")
    try:
        began = time.monotonic()
        sides = [_side(rollout, "new"), _side(rollout, "old")]
        ended = time.monotonic()
    except BaseException:
        _cache.pop(rollout.pk, None)
        raise
    _cache.pop(rollout.pk, None)
    if ended - began >= _CHEAP_S:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[rollout.pk] = _CachedSides(key, sides, ended + _CACHE_FACTOR * (ended - began))
    return sides


def _side(rollout: DeploymentRollout, side: Literal["new", "old"]) -> Side:
    copies = tuple(rollout.copies.get(side, ()))
    attempts = copy_attempts(copies=copies, since=rollout.created_at, until=rollout.ended_at)
    sums = attempts.aggregate(
        requests=Count("*"),
        failed=Count("status", filter=Q(status="error")),
        prompts=Sum("prompt_tokens"),
        completions=Sum("completion_tokens"),
    )
    arm = Arm(0, 0, 0, latencies_ms(attempts.filter(status="ok"), most=_MAX_LATENCIES))
    return Side(
        side,
        copies,
        sums["requests"],
        sums["failed"],
        sums["prompts"] or 0,
        sums["completions"] or 0,
        arm.percentile(0.5),
        arm.percentile(0.95),
    )
