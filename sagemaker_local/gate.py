"""Checks before each control plane operation: rate limits and injected faults."""

from __future__ import annotations

from collections.abc import Mapping

from sagemaker_local.aws_errors import ThrottlingException
from sagemaker_local.clock import Clock
from sagemaker_local.faults import Faults


class Gate:
    """Token buckets by operation: each holds a second of its rate, at least one call; the clock fills it."""

    def __init__(self, clock: Clock, rates: Mapping[str, float], faults: Faults) -> None:
        self._clock, self._faults = clock, faults
        self.rates = dict(rates)
        self._left: dict[str, tuple[float, float]] = {}

    def __call__(self, operation: str) -> None:
        """Raise ThrottlingException, or the pending fault."""
        self._faults.meet("*", operation)
        rate = self.rates.get(operation, self.rates.get("*"))
        if rate is None:
            return
        now, most = self._clock.now(), max(rate, 1.0)
        left, since = self._left.get(operation, (most, now))
        left = min(most, left + (now - since) * rate)
        self._left[operation] = (max(left - 1.0, 0.0) if left >= 1.0 else left, now)
        if left < 1.0:
            raise ThrottlingException("Rate exceeded")
