"""A circuit breaker: keeps requests from a failing copy, and probes it with one request at a time.

closed ──(failures in a row, or too large a share)──> open ──(wait over)──> half open
half open ──(the probe succeeds)──> closed      half open ──(it fails: twice the wait)──> open
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

FAILURES_IN_A_ROW: Final = 5
FAILED_SHARE: Final = 0.5
MIN_REQUESTS: Final = 20
"""Requests in a window before the share of failures counts."""
WINDOW_SECONDS: Final = 10.0
FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 30.0


class Breaker:
    """The breaker of one copy. If it is `ready`, call `begin`, then one of `succeed`, `fail`, `release`."""

    __slots__ = (
        "_chance",
        "_clock",
        "_failed",
        "_in_a_row",
        "_open_until",
        "_probing",
        "_requests",
        "_wait",
        "_window_ends",
        "openings",
    )

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._chance = clock, chance
        self._in_a_row = self._failed = self._requests = 0
        self._window_ends = 0.0
        self._open_until: float | None = None
        self._wait = FIRST_WAIT
        self._probing = False
        self.openings = 0

    @property
    def state(self) -> str:
        """`closed`, `open` or `half_open`."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def ready(self) -> bool:
        """True if a request may go to the copy."""
        if self._open_until is None:
            return True
        return not self._probing and self._clock() >= self._open_until

    @property
    def wait(self) -> float:
        """Seconds until a probe is allowed; 0 if it is allowed now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def begin(self) -> bool:
        """Count a request to the copy; True if it is the probe."""
        self._probing = self._open_until is not None
        return self._probing

    def succeed(self, *, probe: bool) -> None:
        """Note that the copy answered. While the breaker is open, only the probe's result counts."""
        if probe:
            self._open_until, self._wait, self._probing = None, FIRST_WAIT, False
            self._requests = self._failed = 0
        self._in_a_row = 0
        self._count(failed=0)

    def fail(self, *, probe: bool) -> None:
        """Note that the copy broke or could not be reached."""
        if probe:
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            self._open()
        elif self._open_until is None:
            self._in_a_row += 1
            self._count(failed=1)
            share = self._requests >= MIN_REQUESTS and self._failed >= FAILED_SHARE * self._requests
            if share or self._in_a_row >= FAILURES_IN_A_ROW:
                self._open()

    def allow_probe(self) -> None:
        """End the wait: the copy was unreachable, and has just answered its monitoring."""
        if self._open_until is not None:
            self._open_until, self._wait = min(self._open_until, self._clock()), FIRST_WAIT

    def release(self, *, probe: bool) -> None:
        """Note that the request ended without a result about the copy."""
        self._probing = self._probing and not probe

    def _open(self) -> None:
        # Between half and the whole wait, so that gateways and copies do not probe in step.
        self._open_until = self._clock() + self._wait * (0.5 + 0.5 * self._chance())
        self._in_a_row = self._failed = self._requests = 0
        self._probing = False
        self.openings += 1

    def _count(self, *, failed: int) -> None:
        if (now := self._clock()) >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            self._requests = self._failed = 0
        self._requests += 1
        self._failed += failed
