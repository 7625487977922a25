"""Wait until something comes true in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 120) -> T:
    """Poll `condition` until it returns something true, and return that; fail after `seconds`."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"not true within {seconds:g} s"
        time.sleep(0.02)
    return value
