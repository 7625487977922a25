"""Histograms as Prometheus reads them, and the worker's figures as a whole."""

from __future__ import annotations

import re

import pytest

from worker_engine.histogram import Histogram
from worker_engine.metrics import escape


def test_buckets_are_cumulative_and_closed_above() -> None:
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 1.1, 2.5, 99.0):
        histogram.observe(value)
    assert histogram.lines("x_seconds", 'tier="disk"') == [
        'x_seconds_bucket{tier="disk",le="1.0"} 2',
        'x_seconds_bucket{tier="disk",le="2.5"} 4',
        'x_seconds_bucket{tier="disk",le="+Inf"} 5',
        'x_seconds_sum{tier="disk"} 104.100000',
        'x_seconds_count{tier="disk"} 5',
    ]
    assert histogram.count == 5
    assert Histogram((1.0,)).lines("y")[0] == 'y_bucket{le="1.0"} 0'


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (1.0, 1.0)])
def test_bounds_must_ascend(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(bounds)


def test_labels_are_escaped() -> None:
    assert re.fullmatch(r'a\\"b\\\\c\\nd', escape('a"b\\c\nd'))
