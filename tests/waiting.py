"""Wait until something comes true in another thread, task or process."""

from __future__ import annotations

import asyncio
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


async def eventually(condition: Callable[[], T], seconds: float = 120) -> T:
    """Await what `wait_for` does, while other tasks of the event loop run."""
    async with asyncio.timeout(seconds):
        while not (value := condition()):  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)
    return value
