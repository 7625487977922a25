"""Awaits a state that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.1
_PAUSE_GROWTH: Final = 1.25


def eventually(check: Callable[[], T], *, seconds: float = 60.0, why: str | Callable[[], object] = "") -> T:
    """Return the first true result of `check`, and fail the test if there is none.

    Args:
        seconds: guards against a hang alone. No test states a speed by it.
        why: what the failure says besides the last result. A callable is evaluated at the failure.
    """
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
    while not (found := check()):
        if time.monotonic() > deadline:
            reason = why() if callable(why) else why
            pytest.fail(f"not within {seconds:g} s: {reason} (last result: {found!r})")
        time.sleep(pause)
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
    return found
