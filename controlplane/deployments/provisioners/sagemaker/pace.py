"""How fast one run may call: as fast as it likes, until AWS throttles an operation.

From then on that operation's calls keep a distance, wider after each refusal and narrower while they pass, so
that hundreds of components are made at the account's rate within one run. Rates are of the account and the
region, differ by operation, and are told by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from controlplane.deployments.provisioners.base import ThrottledError

PATIENCE: Final = 25.0
"""Seconds that one run may wait in all: less than its lease is for."""
_FIRST, _WIDEST = 0.2, 4.0
_NARROWER: Final = 0.95
_TRIES: Final = 5

T = TypeVar("T")


class Pace:
    """Of one run's calls. `clock` and `sleep` are of seconds."""

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
        """What `call` returns, once it is let through.

        Raises:
            ThrottledError: it was not, so often in a row, or the run has waited long enough in all.
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
