"""What each side of a deployment's rollout has answered: new copies and the others, by metered usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from django.db.models import Count, Q, Sum

from controlplane.deployments.rollouts.models import DeploymentRollout
from controlplane.metering.selectors import copy_attempts, latencies_ms
from controlplane.rollouts.statistics import Arm

_MAX_LATENCIES: Final = 5000


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


def rollout_sides(*, rollout: DeploymentRollout) -> list[Side]:
    """(new, old), until the rollout's end. SageMaker tells no copies apart: there all are `old`."""
    return [_side(rollout, "new"), _side(rollout, "old")]


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
