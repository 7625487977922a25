"""Waits for something to become true, and says what it was when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import httpx


def wait_until(what: Callable[[], object], *, seconds: float, name: str, pause: float = 0.1) -> None:
    """Raises TimeoutError. A server that does not answer yet is waited for, too."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.TransportError):
            if what():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: not within {seconds:g} s")
        time.sleep(pause)
