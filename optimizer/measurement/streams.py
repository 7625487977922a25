"""Clients of one arm, in turns or at a trace's times: what each stream of tokens looked like from outside."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from contracts.recipes.progress import Code, JobError
from optimizer.measurement.arm_process import ArmProcess

BURST: Final = 0.001
"""Seconds within which messages count as one: less than a step takes, more than lies between two writes."""
_PATIENCE: Final = 900.0
"""Seconds for one answer."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a route of OpenAI's and its body, without what makes it a stream.

    Attributes:
        at: seconds after a round's begin at which it is due, where arrivals are replayed.
    """

    path: str
    body: Mapping[str, Any]
    at: float = 0.0


@dataclass(slots=True)
class Stream:
    """One answer as it came.

    Attributes:
        sent, ended: seconds on `time.perf_counter`; sent is when it was due, where arrivals are replayed.
        arrivals: when, and how many tokens there were by then, as the worker counts; a burst is one.
    """

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def arrive(self, at: float, tokens: int) -> None:
        """There are `tokens` now. What a step made of several comes in messages one right after another."""
        if self.arrivals and at - self.arrivals[-1][0] < BURST:
            self.arrivals[-1] = (self.arrivals[-1][0], tokens)
        else:
            self.arrivals.append((at, tokens))

    @property
    def tokens(self) -> int:
        return self.arrivals[-1][1] if self.arrivals else 0

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0][0] - self.sent

    @property
    def itl(self) -> list[float]:
        """Seconds between tokens. Of several that came together each has its part of the wait for them: else
        most tokens of an arm that speculates would seem to take no time."""
        told: list[float] = []
        for (before, had), (after, have) in zip(self.arrivals, self.arrivals[1:], strict=False):
            told += [(after - before) / (have - had)] * (have - had)
        return told

    @property
    def otps(self) -> float | None:
        """Tokens a second after the first ones; None for an answer that came at once."""
        (first, had), (last, have) = self.arrivals[0], self.arrivals[-1]
        return (have - had) / (last - first) if last > first else None


def exchange(arm: ArmProcess, asks: Sequence[Ask], *, streams: int) -> tuple[list[Stream], float]:
    """Sends all, and returns the answers in their order and the seconds that it took.

    Args:
        streams: as many at a time, the next when one ends; 0 sends each when it is due, whatever has become
            of those before it.

    Raises:
        JobError: worker_failed, where an answer was an error or no stream with its usage.
    """
    return asyncio.run(_exchange(arm, asks, streams))


async def _exchange(arm: ArmProcess, asks: Sequence[Ask], streams: int) -> tuple[list[Stream], float]:
    answers: dict[int, Stream] = {}
    left = iter(enumerate(asks))
    headers = {"Authorization": f"Bearer {arm.token}"}
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{arm.port}",
        timeout=aiohttp.ClientTimeout(total=_PATIENCE),
        headers=headers,
        # Its own limit of 100 connections would make 256 streams 100, and arrivals wait for each other.
        read_bufsize=1 << 20,
        connector=aiohttp.TCPConnector(limit=0),
    ) as session:

        async def client() -> None:
            for index, ask in left:
                answers[index] = await _stream(session, ask, time.perf_counter())

        async def arrival(index: int, ask: Ask, due: float) -> None:
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            # Counted from when it was due: a client that comes late has waited as well.
            answers[index] = await _stream(session, ask, due)

        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as clients:
                if streams:
                    for _ in range(min(streams, len(asks))):
                        clients.create_task(client())
                else:
                    for index, ask in left:
                        clients.create_task(arrival(index, ask, began + ask.at))
        except* (aiohttp.ClientError, TimeoutError, OSError, ValueError) as errors:
            first = errors.exceptions[0]
            raise JobError(Code.WORKER_FAILED, f"arm {arm.arm.name}: {first!r}: {arm.log_tail()}") from first
        seconds = time.perf_counter() - began
    return [answers[index] for index in range(len(asks))], seconds


async def _stream(session: aiohttp.ClientSession, ask: Ask, sent: float) -> Stream:
    """Raises ValueError for an answer that is none."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**ask.body, "stream": True, "stream_options": options}
    stream = Stream(sent)
    async with session.post(ask.path, json=body) as response:
        if response.status != 200:
            raise ValueError(f"refuses with {response.status}: {(await response.text())[:500]}")
        async for event in _events(response):
            _take(stream, event)
    stream.ended = time.perf_counter()
    if not stream.tokens:
        raise ValueError("a stream ended without a token")
    return stream


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        if data and data != b"[DONE]":
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"ends with {event['error']}")
            yield event


def _take(stream: Stream, event: Mapping[str, Any]) -> None:
    usage = event.get("usage")
    if not usage:
        raise ValueError("tells no usage")
    stream.prompt_tokens = usage["prompt_tokens"]
    stream.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    if usage["completion_tokens"] > stream.tokens:
        stream.arrive(time.perf_counter(), usage["completion_tokens"])
