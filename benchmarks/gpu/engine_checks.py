"""The engine as a GPU runs it against itself launch by launch: replays, a step in flight, adapters in pages.

Weights are random, and the same in both engines. In bf16 another order of sums may settle a near tie
otherwise, so tokens are compared with their log probabilities, up to the first tie that falls differently.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from unittest import mock

import torch

from benchmarks.gpu.random_model import build_engine, random_adapter
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.verdict import failed
from kernels.capture import Reruns
from worker_engine.adapters.adapter import Adapter, packed
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.engine import Engine
from worker_engine.protocol import GenerateRequest, SamplingParams, TokenLogprobs

RANKS: Final = (4, 32, 8, 16)
STRENGTH: Final = 10.0
"""What B is multiplied with: another adapter's tokens, or none's, are then plainly others."""
TOLERANCE: Final = 0.2
"""Nats between log probabilities of the same token; other weights differ by several."""
LEAST_SHARE: Final = 0.5
"""Of all tokens, those that must have been compared."""
REQUESTS: Final = 16
PAGE_BYTES: Final = 4096
"""Of `random_model.TINY` in bf16."""

Told = dict[str, list[TokenLogprobs]]


@dataclass(frozen=True, slots=True)
class Check:
    """What the engine does beyond running launch by launch, one step after another.

    Attributes:
        pages: of the pool; few enough, and adapters leave it and come back while others decode.
        again: the engine is closed and another one started before anything is compared.
    """

    name: str
    graphs: bool = False
    overlap: bool = False
    pages: int = 600
    again: bool = False


CHECKS: Final = (
    Check("replays", graphs=True),
    Check("overlap", overlap=True),
    Check("newcomers", graphs=True, pages=44),
    Check("newcomers_overlap", graphs=True, overlap=True, pages=44),
    Check("started_again", graphs=True, overlap=True, again=True),
)


def tasks() -> list[Task]:
    """The same small model with `--quick` and without: what is asked is whether, not how fast."""
    return [
        Task(
            f"engine.{check.name}",
            {"op": "engine", "form": check.name},
            partial(run, check=check),
            # What the kernels compute is checked by the other rows, case by case.
            environment={"GRAFTWORK_WORKER_TRITON": "1"},
            limit_s=180.0,
        )
        for check in CHECKS
    ]


def run(bench: Bench, check: Check) -> Row:
    """Serves the same requests twice."""
    engine, model = _engine(bench.device, check)
    adapters = _adapters(model, bench.device)
    if check.again:
        serve(engine, model, adapters)
        engine.close()
        engine, _ = _engine(bench.device, check)
    found = serve(engine, model, adapters)
    replays = 0 if engine.graphs is None else engine.graphs.num_replays
    tier = engine.scheduler.adapters.tier
    loads = 0 if tier is None else tier.num_loads
    problem = "" if engine.graphs is None else engine.graphs.problem
    leaked = engine.pool.num_used
    engine.close()
    row = judge(expected(model, bench.device), found)
    row |= {"replayed_steps": replays, "adapter_loads": loads}
    if problem:
        return row | failed(f"decode steps could not be recorded: {problem}")
    if check.graphs and not replays:
        return row | failed("no step was replayed")
    if check.pages < 100 and loads <= len(RANKS):
        return row | failed(f"adapters were loaded {loads} times: none came back")
    return row | failed(f"{leaked} pages are still held") if leaked else row


def judge(expected: Told, found: Told) -> Row:
    """Token by token, of each request up to a near tie that falls otherwise."""
    worst, compared, ties = 0.0, 0, 0
    for name, known in expected.items():
        ours = found.get(name, [])
        if len(ours) != len(known):
            return failed(f"request {name} has {len(ours)} tokens; expected {len(known)}")
        for index, (left, right) in enumerate(zip(known, ours, strict=True)):
            if left.token_id != right.token_id:
                gap = left.logprob - dict(left.top).get(right.token_id, float("-inf"))
                if not gap <= TOLERANCE:
                    return failed(
                        f"request {name}, token {index}: {right.token_id} for {left.token_id}, which is "
                        f"likelier by {gap:.3g}"
                    )
                ties += 1
                break
            worst, compared = max(worst, abs(left.logprob - right.logprob)), compared + 1
    total = sum(map(len, expected.values()))
    row: Row = {"passed": True, "max_error": worst, "compared": compared, "tokens": total, "near_ties": ties}
    if not worst <= TOLERANCE:
        return row | failed(f"log probabilities differ by {worst:.3g}")
    if compared < LEAST_SHARE * total:
        return row | failed(f"only {compared} of {total} tokens could be compared")
    return row


def serve(engine: Engine, model: ModelConfig, adapters: Sequence[Adapter | None]) -> Told:
    """Requests that come while others run, each with an adapter of chance; greedy.

    Raises:
        RuntimeError: a request ended with an error.
    """
    draw, waiting = random.Random(5), list(range(REQUESTS))
    told: Told = {}
    while waiting or not engine.idle:
        while waiting and draw.random() < 0.3:
            name = str(waiting.pop(0))
            prompt = tuple(draw.randrange(2, model.vocab_size) for _ in range(draw.randrange(1, 40)))
            sampling = SamplingParams(draw.randrange(8, 24), temperature=0.0, ignore_eos=True, logprobs=2)
            engine.add_request(GenerateRequest(name, prompt, sampling), draw.choice(adapters))
        for delta in engine.step():
            if delta.error is not None:
                raise RuntimeError(f"request {delta.request_id}: {delta.error}")
            told.setdefault(delta.request_id, []).extend(delta.logprobs)
    return told


@cache
def _expected(model: ModelConfig, device: torch.device) -> Mapping[str, list[TokenLogprobs]]:
    engine, _ = _engine(device, Check("expected"))
    told = serve(engine, model, _adapters(model, device))
    engine.close()
    return told


def expected(model: ModelConfig, device: torch.device) -> Told:
    """What the engine says launch by launch, one step after another, with room for all."""
    return dict(_expected(model, device))


@cache
def _adapters(model: ModelConfig, device: torch.device) -> tuple[Adapter | None, ...]:
    """As the loader hands them over: in host memory that the device copies from."""
    made: list[Adapter | None] = [None]
    for index, rank in enumerate(RANKS):
        torch.manual_seed(index)
        adapter = random_adapter(index, model, rank, torch.device("cpu"))
        for pairs in adapter.layers:
            for pair in pairs.values():
                pair.b.mul_(STRENGTH)
        made.append(packed(adapter, pinned=device.type == "cuda"))
    return tuple(made)


def _engine(device: torch.device, check: Check) -> tuple[Engine, ModelConfig]:
    """Of the same weights each time. On a CPU recordings run again and copies are done at once."""
    torch.manual_seed(11)
    options: dict[str, Any] = {
        "max_model_len": 128,
        "memory_gib": check.pages * PAGE_BYTES / 2**30,
        "max_num_seqs": 4,
        "max_adapters_per_batch": 2,
        "cuda_graphs": "lazy" if check.graphs else "off",
        "overlap": "on" if check.overlap else "off",
    }
    captures = Reruns() if check.graphs and device.type == "cpu" else None
    with _pages_lent():
        return build_engine(True, device, captures=captures, **options)


@contextmanager
def _pages_lent() -> Iterator[None]:
    """Adapters lie in the pool's pages on every device, as on CUDA."""
    with mock.patch("worker_engine.model_runner.lends_pages", return_value=True):
        yield
