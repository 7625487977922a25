"""A tenant that floods the real engine, whose clock counts work: what else the machine does is no matter."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.conftest import EngineFactory, request
from worker_engine.engine import Engine
from worker_engine.protocol import GenerateRequest, Origin
from worker_engine.scheduler import Chunk

ROWS = 8
SAMPLES = 320


class Clock:
    """Seconds of work, and whatever was skipped because nothing was to do.

    A step takes what its rows and the prompt's tokens in it take on a device: the same in every run.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def charge(self, engine: Engine) -> None:
        """From now on every step of `engine` takes its time."""
        run: Callable[..., Any] = engine._runner.run

        def charged(chunks: Sequence[Chunk], *args: Any) -> Any:
            self.now += 0.01 + sum(0.0005 if chunk.count == 1 else 0.0002 * chunk.count for chunk in chunks)
            return run(chunks, *args)

        engine._runner.run = charged  # type: ignore[method-assign, assignment]
        engine._clock = engine.scheduler._clock = self


def ask(draw: random.Random, tenant: str, number: int) -> GenerateRequest:
    prompt = [draw.randrange(250) for _ in range(draw.randrange(8, 32))]
    plain = request(f"{tenant}{number}", prompt, draw.randrange(2, 8))
    origin = Origin(tenant=tenant, cache_salt=tenant)
    return GenerateRequest(plain.request_id, plain.prompt_token_ids, plain.sampling, None, origin)


def capacity(engine: Engine, clock: Clock) -> float:
    """Requests per second that the engine serves when some always wait."""
    draw = random.Random(0)
    for number in range(120):
        engine.add_request(ask(draw, "warm", number), None)
    started, ended = clock(), 0
    while not engine.idle:
        ended += sum(delta.finish_reason is not None for delta in engine.step())
    return ended / (clock() - started)


def ttfts(engine: Engine, clock: Clock, light: float, flood: float) -> list[float]:
    """Times to first token of a tenant with `light` requests per second while another sends `flood`."""
    draw = random.Random(3)
    at = {"light": clock(), "flood": clock()}
    came: dict[str, float] = {}
    found: list[float] = []
    backlog: deque[str] = deque()
    number = 0
    while len(found) < SAMPLES:
        now = clock()
        for tenant, rate in (("light", light), ("flood", flood)):
            while at[tenant] <= now:
                number += 1
                # A flood's excess is refused by the limit on a tenant's queue.
                if tenant == "light" or len(backlog) < 64:
                    item = ask(draw, tenant, number)
                    engine.add_request(item, None, arrived=at[tenant])
                    if tenant == "light":
                        came[item.request_id] = at[tenant]
                    else:
                        backlog.append(item.request_id)
                at[tenant] += draw.expovariate(rate)
        if engine.idle:
            clock.now = max(clock.now, min(at.values()))
            continue
        for delta in engine.step():
            if delta.token_ids and delta.request_id in came:
                found.append(clock() - came.pop(delta.request_id))
            if delta.finish_reason is not None and delta.request_id.startswith("flood"):
                backlog.remove(delta.request_id)
    for name in [*came, *backlog]:
        engine.abort(name)
    return found


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


@pytest.mark.slow
def test_a_flood_leaves_the_others_p99_ttft(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Ten times its fair share against its fair share; the other tenant sends half its own."""
    clock = Clock()
    engine = make_engine(tiny_model, max_num_seqs=ROWS, max_num_batched_tokens=64)
    clock.charge(engine)
    share = capacity(engine, clock) / 2
    fair = ttfts(engine, clock, share / 2, share)
    flooded = ttfts(engine, clock, share / 2, 10 * share)
    assert p99(flooded) <= 1.5 * p99(fair), (p99(flooded), p99(fair))
