"""Statistical test whether a canary is worse than the stable version. Arithmetic only.

Shares of failed and of slow requests are compared by confidence intervals: Wilson's score interval (1927) for
one share, Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10) for the difference of
two. Both are accurate for few requests and for shares near 0, which error shares are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

WORSE_Z: Final = 3.0
"""Standard errors for `worse`: a chance of 0.13 % per test, which is repeated often."""
FINE_Z: Final = 1.645
"""Standard errors for `fine`: a chance of 5 %, in the few tests after a step's hold time."""
WORSE_EVENTS: Final = 5
"""Least failures or slow answers for `worse`: one of the first three requests means little."""
SLOW_SHARE: Final = 0.05
"""Share of requests above the 95th percentile, by definition."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm's requests since a step began. Latencies are milliseconds to the first token."""

    version: int
    requests: int
    errors: int
    latencies: Sequence[float]

    @property
    def error_share(self) -> float:
        return self.errors / self.requests if self.requests else 0.0

    def percentile(self, share: float) -> float | None:
        """Return the nearest-rank percentile of the latencies; None without answers."""
        if not self.latencies:
            return None
        return sorted(self.latencies)[max(math.ceil(share * len(self.latencies)) - 1, 0)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "requests": self.requests,
            "errors": self.errors,
            "answers": len(self.latencies),
            "p50_ms": self.percentile(0.5),
            "p95_ms": self.percentile(0.95),
        }


@dataclass(frozen=True, slots=True)
class Bounds:
    """A rollout's tolerances; see Rollout."""

    min_requests: int
    max_error_increase: float
    max_latency_ratio: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a comparison; `figures` holds the compared values, as stored with the decision."""

    outcome: Literal["worse", "fine", "wait"]
    reason: str
    figures: dict[str, Any]


def wilson(successes: int, count: int, z: float) -> Interval:
    """Return Wilson's score interval of a share with `successes` of `count`."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = successes / count, z * z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def difference(first: tuple[int, int], second: tuple[int, int], z: float) -> Interval:
    """Return Newcombe's interval of the first share less the second; each is (successes, count)."""
    (low1, high1), (low2, high2) = wilson(*first, z), wilson(*second, z)
    share1, share2 = (successes / count if count else 0.0 for successes, count in (first, second))
    delta = share1 - share2
    return (
        delta - math.hypot(share1 - low1, high2 - share2),
        delta + math.hypot(high1 - share1, share2 - low2),
    )


def judge(stable: Arm, canary: Arm, bounds: Bounds) -> Verdict:
    """Compare both arms: `worse` if errors or latency are; `fine` if both are and requests suffice."""
    figures: dict[str, Any] = {
        "stable": stable.to_dict(),
        "canary": canary.to_dict(),
        "bounds": asdict(bounds),
    }
    waits: list[str] = []
    for compare in (_errors, _latency):
        outcome, reason = compare(stable, canary, bounds, figures)
        if outcome == "worse":
            return Verdict("worse", reason, figures)
        if outcome == "wait":
            waits.append(reason)
    short = min(stable.requests, canary.requests)
    if short < bounds.min_requests:
        arm = "canary" if canary.requests == short else "stable version"
        waits.insert(0, f"the {arm} has had {short} of {bounds.min_requests} requests")
    if waits:
        return Verdict("wait", "; ".join(waits), figures)
    return Verdict("fine", "errors and latency are within their bounds", figures)


def _errors(stable: Arm, canary: Arm, bounds: Bounds, figures: dict[str, Any]) -> tuple[str, str]:
    shares = ((canary.errors, canary.requests), (stable.errors, stable.requests))
    least, most = difference(*shares, WORSE_Z)[0], difference(*shares, FINE_Z)[1]
    figures["error_increase"] = {"at_least": round(least, 5), "at_most": round(most, 5)}
    text = (
        f"{canary.error_share:.2%} of the canary's requests failed, {stable.error_share:.2%} of the stable's"
    )
    allowed = bounds.max_error_increase
    if least > allowed and canary.errors >= WORSE_EVENTS:
        return "worse", f"{text}: at least {least:.2%} more, where {allowed:.2%} more are allowed"
    if most > allowed:
        return "wait", f"{text}: it may be {most:.2%} more, where {allowed:.2%} more are allowed"
    return "fine", text


def _latency(stable: Arm, canary: Arm, bounds: Bounds, figures: dict[str, Any]) -> tuple[str, str]:
    if bounds.max_latency_ratio is None:
        return "fine", ""
    usual = stable.percentile(0.95)
    if usual is None or len(stable.latencies) < bounds.min_requests:
        return "wait", f"the stable version has given {len(stable.latencies)} answers to compare latency with"
    limit = usual * bounds.max_latency_ratio
    slow = sum(latency > limit for latency in canary.latencies)
    count = len(canary.latencies)
    least, most = wilson(slow, count, WORSE_Z)[0], wilson(slow, count, FINE_Z)[1]
    figures["slow"] = {
        "limit_ms": round(limit, 3),
        "answers": slow,
        "at_least": round(least, 5),
        "at_most": round(most, 5),
    }
    text = (
        f"{slow} of the canary's {count} answers took longer than {limit:.0f} ms to begin,"
        f" {bounds.max_latency_ratio:g} times the stable version's 95th percentile"
    )
    if least > SLOW_SHARE and slow >= WORSE_EVENTS:
        return "worse", f"{text}: at least {least:.1%}, where {SLOW_SHARE:.0%} are allowed"
    if most > SLOW_SHARE:
        return "wait", f"{text}: it may be {most:.1%}, where {SLOW_SHARE:.0%} are allowed"
    return "fine", text
