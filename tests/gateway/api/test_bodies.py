"""Bodies in time and too late, many at once under one timer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.bodies import Bodies
from gateway.errors import RequestTimeout
from tests.gateway import virtual_time

SCOPE: dict[str, Any] = {"headers": []}
LAST = {"type": "http.request", "body": b"end", "more_body": False}


def receive_after(seconds: float) -> Any:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return LAST

    return receive


def test_each_body_has_its_own_time() -> None:
    bodies, begun = Bodies(seconds=0.3), 0.0

    async def one(start: float, takes: float) -> bytes | str:
        await asyncio.sleep(start)
        try:
            return await bodies.read(SCOPE, receive_after(takes))
        except RequestTimeout:
            return f"late after {asyncio.get_running_loop().time() - begun - start:.1f}"

    async def work() -> list[bytes | str]:
        nonlocal begun
        begun = asyncio.get_running_loop().time()
        # A pair is when a request begins, and how long its body takes.
        asks = [(0.0, 0.1), (0.0, 60), (0.2, 60), (0.25, 0.2), (0.9, 60), (0.9, 0.0)]
        return await asyncio.gather(*(one(*ask) for ask in asks))

    late = "late after 0.3"
    assert virtual_time.run(work()) == [b"end", late, late, b"end", late, b"end"]


def test_a_late_task_goes_on_uncancelled() -> None:
    async def work() -> int:
        with pytest.raises(RequestTimeout, match=r"within 0\.05 s"):
            await Bodies(seconds=0.05).read(SCOPE, receive_after(60))
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert virtual_time.run(work()) == 0


def test_another_cancellation_stays_one() -> None:
    async def work() -> None:
        task = asyncio.create_task(Bodies(seconds=60).read(SCOPE, receive_after(60)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(work())


def test_two_cancellations_at_once() -> None:
    async def work() -> None:
        bodies = Bodies(seconds=0.05)
        task = asyncio.create_task(bodies.read(SCOPE, receive_after(60)))
        await asyncio.sleep(0)
        # The deadline cancels the task, and another caller does so in the same iteration of the loop.
        bodies._deadlines._timeouts._due[task] = 0.0
        bodies._deadlines._timeouts._check(asyncio.get_running_loop())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(work())
