"""Histograms of durations."""

from __future__ import annotations

from worker_engine.histogram import BOUNDS, Histogram


def test_buckets_are_cumulative_and_closed_above() -> None:
    histogram = Histogram()
    for value in (0.0005, 0.001, 0.0011, 30.0, 99.0):
        histogram.observe(value)
    assert [bound for bound, _ in histogram.buckets()] == [*map(str, BOUNDS), "+Inf"]
    counts = dict(histogram.buckets())
    assert [counts[bound] for bound in ("0.001", "0.0025", "10.0", "30.0", "60.0", "+Inf")] == [
        2,
        3,
        3,
        4,
        4,
        5,
    ]
    assert histogram.count == 5
    assert histogram.total == 129.0026
