"""Pace the AWS calls of one run: without a limit until AWS throttles an operation.

From then on that operation's calls keep a distance, doubled after each refusal and reduced after each
success. Hundreds of components are thus created at the account's rate within one run. AWS's rates differ by
account, region and operation, and are not published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from controlplane.deployments.provisioners.base import ThrottledError

PATIENCE: Final = 25.0
"""Seconds that one run may wait in total: less than its lease lasts."""
_FIRST, _WIDEST = 0.2, 4.0
_NARROWER: Final = 0.95
_TRIES: Final = 5

T = TypeVar("T")


class Pace:
    """Paces the calls of one run; `clock` and `sleep` use seconds."""

    def __init__(
        self,
        patience: float = PATIENCE,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._left, self._clock, self._sleep = patience, clock, sleep
        self._distance: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def keep(self, operation: str, call: Callable[[], T]) -> T:
        """Return the result of `call`, after the operation's distance has passed.

        Raises:
            ThrottledError: too many refusals in a row, or the run's total wait is used up.
        """
        for left in reversed(range(_TRIES)):
            self._wait(operation)
            self._last[operation] = self._clock()
            try:
                answer = call()
            except ThrottledError:
                wider = max(_FIRST, 2 * self._distance.get(operation, 0.0))
                self._distance[operation] = min(wider, _WIDEST)
                if not left or self._left < self._distance[operation]:
                    raise
                continue
            if operation in self._distance:
                self._distance[operation] *= _NARROWER
            return answer
        raise AssertionError("unreachable")

    def _wait(self, operation: str) -> None:
        due = self._last.get(operation, 0.0) + self._distance.get(operation, 0.0)
        seconds = min(due - self._clock(), self._left)
        if operation in self._distance and seconds > 0:
            self._left -= seconds
            self._sleep(seconds)
