"""What each side of a deployment's rollout has answered: new copies and the others, by metered usage."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.db.models import Count, Q, Sum

from controlplane.canaries.statistics import Arm
from controlplane.deployments.rollouts.models import DeploymentRollout
from controlplane.metering.selectors import copy_attempts, latencies_ms

_MAX_LATENCIES: Final = 5000
_CHEAP_S: Final = 0.25
"""What takes less is added up anew at each look."""
_RESTS: Final = 20
"""What takes more is told again for so many times as long: pages ask every 2 s, and events of a long canary
are read for a twentieth of the time at most, by each web process."""
_MOST_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class Side:
    """Attempts at copies of one side since the rollout began; milliseconds are to the first token of answers.

    Attributes:
        copies: ids of those that have served it, also of such as have left.
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
class _Kept:
    """A look that took long, and until when (by the monotonic clock) it is told again."""

    of: tuple[Any, ...]
    sides: list[Side]
    until: float


_kept: dict[int, _Kept] = {}


def rollout_sides(*, rollout: DeploymentRollout) -> list[Side]:
    """(new, old), until the rollout's end. SageMaker tells no copies apart: there all are `old`.

    What took more than a quarter of a second to add up is told again for twenty times as long as it took,
    unless copies have come or gone, or the rollout has ended.
    """
    of = (rollout.created_at, rollout.ended_at, repr(rollout.copies))
    kept = _kept.get(rollout.pk)
    if kept is not None and kept.of == of:
        if time.monotonic() < kept.until:
            return kept.sides
        # Of several that look at once, one adds up; the others are told what is there.
        kept.until = float("inf")
    try:
        began = time.monotonic()
        sides = [_side(rollout, "new"), _side(rollout, "old")]
        ended = time.monotonic()
    except BaseException:
        _kept.pop(rollout.pk, None)
        raise
    _kept.pop(rollout.pk, None)
    if ended - began >= _CHEAP_S:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[rollout.pk] = _Kept(of, sides, ended + _RESTS * (ended - began))
    return sides


def _side(rollout: DeploymentRollout, side: Literal["new", "old"]) -> Side:
    copies = tuple(rollout.copies.get(side, ()))
    attempts = copy_attempts(copies=copies, since=rollout.created_at, until=rollout.ended_at)
    sums = attempts.aggregate(
        requests=Count("*"), failed=Count("status", filter=Q(status="error")),
        prompts=Sum("prompt_tokens"), completions=Sum("completion_tokens"),
    )  # fmt: skip
    arm = Arm(0, 0, 0, latencies_ms(attempts.filter(status="ok"), most=_MAX_LATENCIES))
    return Side(
        side, copies, sums["requests"], sums["failed"], sums["prompts"] or 0, sums["completions"] or 0,
        arm.percentile(0.5), arm.percentile(0.95),
    )  # fmt: skip
