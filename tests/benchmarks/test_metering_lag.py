"""The lag is that of the request which waits longest, not of the newest one."""

from __future__ import annotations

import pytest

from benchmarks.metering_lag import _lags

pytestmark = pytest.mark.slow


def test_the_lag_is_of_the_first_request_that_is_missing() -> None:
    ends = [1.0, 2.0, 3.0]
    assert _lags([(0.5, 0), (1.5, 0), (2.5, 1), (3.5, 1), (3.6, 3)], ends) == [0.5, 0.5, 1.5, 0.0]


def test_a_look_before_a_request_ended_counts_none() -> None:
    assert _lags([(0.5, 0)], [1.0]) == []
    assert _lags([(1.5, 2)], [1.0, 2.0]) == [0.0]
