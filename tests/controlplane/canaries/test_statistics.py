"""The intervals against published figures, and what outcome figures lead to."""

from __future__ import annotations

import pytest

from controlplane.canaries.statistics import Arm, Bounds, difference, judge, wilson

BOUNDS = Bounds(min_requests=100, max_error_increase=0.02, max_latency_ratio=1.5)


def arm(requests: int, errors: int = 0, ms: float = 100.0, slow: int = 0) -> Arm:
    """Answers begin after `ms`, but `slow` of them after ten times that."""
    answers = requests - errors
    return Arm(1, requests, errors, [ms * 10] * slow + [ms] * (answers - slow))


def test_wilson_as_newcombe_tabulates_it() -> None:
    """Newcombe (1998), Statistics in Medicine 17, 857-872, table I, method 3."""
    for seen, count, expected in (
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0000, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ):
        assert wilson(seen, count, 1.959964) == pytest.approx(expected, abs=5e-5)
    assert wilson(0, 0, 3.0) == (0.0, 1.0)


def test_differences_as_newcombe_tabulates_them() -> None:
    """Newcombe (1998), Statistics in Medicine 17, 873-890, table II, method 10."""
    for first, second, expected in (
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 10), (0.6075, 1.0000)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)),
    ):
        assert difference(first, second, 1.959964) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("stable", "canary", "outcome", "said"),
    [
        (arm(1000, 10), arm(300, 3), "fine", "within their bounds"),
        # Five failures of five are enough; one of three is not.
        (arm(1000), arm(5, 5), "worse", "100.00% of the canary's requests failed"),
        (arm(1000), arm(3, 1), "wait", "has had 3 of 100 requests"),
        # Both fail alike: the backend's fault, not the canary's.
        (arm(1000, 500), arm(1000, 500), "wait", "it may be"),
        (arm(20_000, 10_000), arm(20_000, 10_000), "fine", "within"),
        # Without a stable arm to compare with there is no verdict.
        (arm(0), arm(50, 50), "wait", "the stable version has had 0 of 100"),
        (arm(1000), arm(1000, 60), "worse", "6.00% of the canary's"),
        (arm(1000), arm(120, 2), "wait", "it may be"),
        (arm(99), arm(1000), "wait", "the stable version has had 99 of 100"),
        # Twice as slow at the 95th percentile.
        (arm(1000), arm(200, ms=200), "worse", "200 of the canary's 200 answers took longer than 150 ms"),
        (arm(1000, slow=20), arm(300, slow=6), "fine", "within"),
        (arm(1000), arm(100, slow=4), "wait", "it may be"),
        (arm(1000), arm(400, slow=60), "worse", "where 5% are allowed"),
        (arm(1000, ms=100), arm(300, ms=140), "fine", "within"),
    ],
)
def test_outcomes(stable: Arm, canary: Arm, outcome: str, said: str) -> None:
    verdict = judge(stable, canary, BOUNDS)
    assert (verdict.outcome, said in verdict.reason) == (outcome, True), verdict.reason
    assert verdict.figures["stable"]["requests"] == stable.requests
    assert verdict.figures["bounds"]["max_error_increase"] == 0.02


def test_latency_may_be_left_out() -> None:
    bounds = Bounds(min_requests=100, max_error_increase=0.02, max_latency_ratio=None)
    assert judge(arm(1000), arm(200, ms=900), bounds).outcome == "fine"


def test_percentiles() -> None:
    latencies = Arm(1, 100, 0, [float(number) for number in range(1, 101)])
    assert (latencies.percentile(0.5), latencies.percentile(0.95)) == (50.0, 95.0)
    assert Arm(1, 0, 0, []).percentile(0.5) is None
