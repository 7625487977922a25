"""Closed-loop clients of an OpenAI-like server, which record each stream's timing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

_TIMEOUT = 300.0


@dataclass(slots=True)
class Stream:
    """One answer: times by `time.perf_counter`, and the server's token counts."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of all streams of a round.

    Attributes:
        tokens_per_s: generated tokens over the time from the first request to the last answer's end.
        ttft: seconds from sending a request to its first text.
        itl: seconds between a stream's texts; a server that sends two tokens at once makes one gap of two.
    """

    tokens_per_s: float
    ttft: tuple[float, ...]
    itl: tuple[float, ...]

    @classmethod
    def from_streams(cls, streams: Sequence[Stream], seconds: float) -> Round:
        gaps = [
            after - before
            for stream in streams
            for before, after in zip(stream.arrivals, stream.arrivals[1:], strict=False)
        ]
        return cls(
            sum(stream.completion_tokens for stream in streams) / seconds,
            tuple(stream.arrivals[0] - stream.sent for stream in streams if stream.arrivals),
            tuple(gaps),
        )


def exchange(port: int, bodies: Iterable[dict[str, Any]], *, streams: int) -> tuple[list[Stream], float]:
    """POST `bodies` to /v1/completions, `streams` at a time.

    Returns:
        The answers in the order of `bodies`, and the total seconds.

    Raises:
        RuntimeError: an answer was not an event stream that ends with the usage.
        TimeoutError: an answer took five minutes.
    """
    return asyncio.run(_exchange(port, [orjson.dumps(body) for body in bodies], streams))


async def _exchange(port: int, bodies: list[bytes], streams: int) -> tuple[list[Stream], float]:
    answers: dict[int, Stream] = {}
    remaining = iter(enumerate(bodies))

    async def client() -> None:
        for index, body in remaining:
            async with asyncio.timeout(_TIMEOUT):
                answers[index] = await _ask(port, body)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(streams, len(bodies)))))
    return [answers[index] for index in range(len(bodies))], time.perf_counter() - start


async def _ask(port: int, body: bytes) -> Stream:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    stream = Stream(time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        async for data in _events(reader):
            _take(stream, data)
    finally:
        writer.close()
    if not stream.completion_tokens:
        raise RuntimeError("a stream ended without telling its usage")
    return stream


def _take(stream: Stream, data: bytes) -> None:
    event = orjson.loads(data)
    if "error" in event:
        raise RuntimeError(f"the server refused: {data.decode()[:500]}")
    if event["choices"] and (text := event["choices"][0]["text"]):
        stream.arrivals.append(time.perf_counter())
        stream.text += text
    if usage := event.get("usage"):
        stream.prompt_tokens, stream.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event of a chunked answer, until [DONE]."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.partition(b"\r\n")[0] or b"transfer-encoding: chunked" not in head:
        raise RuntimeError(f"no stream: {head.decode()} {(await reader.read(2000)).decode()}")
    held = b""
    while size := int(await reader.readline(), 16):
        held += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, held = held.split(b"\n\n")
        for part in whole:
            data = part.removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if data is not part:
                yield data
