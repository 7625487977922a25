"""Wait for a condition that another thread, process or server brings about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.05


def eventually(
    check: Callable[[], T | None],
    *,
    seconds: float = 60.0,
    message: str | Callable[[], object] = "",
    suppress: tuple[type[Exception], ...] = (),
) -> T:
    """Return the first true value of `check()`; fail after `seconds`, which only guard against hanging.

    The failure names what was awaited (`message`, called where it is a function) and the last value.
    Exceptions in `suppress` count as a false value. How fast something happens is a benchmark's subject.
    """
    deadline = time.monotonic() + seconds
    pause, last = _FIRST_PAUSE_S, object()
    while True:
        try:
            last = value = check()
        except suppress as error:
            last = error
        else:
            if value:
                return value
        if time.monotonic() > deadline:
            awaited = message() if callable(message) else message
            raise AssertionError(f"not within {seconds:g} s: {awaited or check} (last value: {last!r})")
        time.sleep(pause)
        pause = min(pause * 1.25, _LONGEST_PAUSE_S)


async def eventually_async(check: Callable[[], T], *, seconds: float = 60.0) -> T:
    """Await what `eventually` returns, while other tasks of the event loop run."""
    async with asyncio.timeout(seconds):
        while not (value := check()):  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)
    return value
