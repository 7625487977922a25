"""Several sequences of one request as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from worker_engine.protocol import TokenDelta

Deltas = AsyncGenerator[TokenDelta, None]


async def merge(
    streams: Sequence[Deltas], at_once: int | None = None
) -> AsyncGenerator[tuple[int, TokenDelta], None]:
    """(index of the stream, delta) as they come, until every stream has ended.

    Args:
        at_once: streams that run together, each of the others begins when one has ended; None for all.

    Closing the iterator, and the first error in any stream, close all streams. A stream that is refused at
    once is heard of before any delta of the others.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, TokenDelta | Exception | None]] = asyncio.Queue()
    numbered = iter(enumerate(streams))
    running = min(at_once or len(streams), len(streams))
    tasks = [asyncio.create_task(_pump(numbered, arrived)) for _ in range(running)]
    try:
        # Every pump runs up to its first wait now: refusals stand in the queue before the first delta can.
        await asyncio.sleep(0)
        while running:
            index, item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    numbered: Iterator[tuple[int, Deltas]], arrived: asyncio.Queue[tuple[int, TokenDelta | Exception | None]]
) -> None:
    """One stream after another; None at the end."""
    index = 0
    try:
        for index, stream in numbered:
            async with aclosing(stream):
                async for delta in stream:
                    arrived.put_nowait((index, delta))
        arrived.put_nowait((index, None))
    except Exception as error:
        arrived.put_nowait((index, error))
