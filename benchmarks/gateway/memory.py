"""Ten minutes of load: what the gateway holds must not grow."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import redis

from benchmarks import load
from benchmarks.figure import Figure, compared
from benchmarks.gateway.targets import KEY, PLAIN, STREAM, direct, disk, gateway, valkey_port
from contracts.redis_names import USAGE_STREAM

MINUTES: Final = 10
GROWTH_GOAL: Final = 1.05
"""Memory in the last fifth over that in the second: the first fills caches."""
_TURN_SECONDS: Final = 5


def figures(minutes: float = MINUTES) -> Iterator[Figure]:
    """Plain requests and streams in turn, as fast as 4 connections go; usage is taken as an ingester does."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk())))
        target = gateway(stack, folder, direct(stack).url)
        url = target.url + "/v1/chat/completions"
        seen: list[float] = []
        answers = 0.0
        until = time.monotonic() + minutes * 60
        with redis.Redis(port=valkey_port(folder)) as client:
            while time.monotonic() < until:
                for body in (PLAIN, STREAM):
                    answers += load.run(url, body, KEY, connections=4, seconds=_TURN_SECONDS).per_second
                client.delete(USAGE_STREAM)
                seen.append(target.resident_mib())
    fifth = max(1, len(seen) // 5)
    early, late = statistics.median(seen[fifth : 2 * fifth]), statistics.median(seen[-fifth:])
    yield compared(
        "gateway",
        "memory over ten minutes",
        late,
        "MiB",
        baseline=early,
        goal=GROWTH_GOAL,
        less_is_better=True,
        note=f"{minutes:g} minutes, {answers * _TURN_SECONDS:.0f} answers; medians of the last fifth and of "
        "the second fifth (baseline); proportional set of all its processes",
    )
