"""The clock that leases are held to: seconds that also ran on while the machine was suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

now: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Redis keeps counting meanwhile, so a lease from before a suspension must not be used after it."""
