"""Compares GPU features of the engine (graph replay, overlap, paged adapters) with plain eager execution.

Weights are random, and the same in both engines. In bf16 another order of sums may decide a near tie
differently. So tokens are compared with their log probabilities, up to the first tie that differs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from unittest import mock

import torch

from benchmarks.gpu.random_model import build_engine, random_adapter
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.verdict import failed
from worker_engine.adapters.adapter import Adapter, pack_adapter
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.engine import Engine
from worker_engine.protocol import GenerateRequest, SamplingParams, TokenLogprobs

RANKS: Final = (4, 32, 8, 16)
STRENGTH: Final = 10.0
"""Factor of B, so that a wrong or missing adapter clearly changes the tokens."""
TOLERANCE: Final = 0.2
"""Nats between log probabilities of the same token; wrong weights differ by several."""
LEAST_SHARE: Final = 0.5
"""Fraction of all tokens that must have been compared."""
REQUESTS: Final = 16
PAGE_BYTES: Final = 4096
"""Bytes per page of `random_model.TINY` in bf16."""

Logprobs = dict[str, list[TokenLogprobs]]


@dataclass(frozen=True, slots=True)
class Check:
    """Engine features used in addition to eager execution of one step at a time.

    Attributes:
        pages: of the pool; with few, adapters are evicted and reloaded while others decode.
        again: the engine is closed and restarted before the comparison.
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
    """Return the checks, on the same small model with and without `--quick`, since speed is not measured."""
    return [
        Task(
            f"engine.{check.name}",
            {"op": "engine", "form": check.name},
            partial(run, check=check),
            # Other rows check the kernels' results case by case.
            environment={"GRAFTWORK_WORKER_TRITON": "1"},
            limit_s=180.0,
        )
        for check in CHECKS
    ]


def run(bench: Bench, check: Check) -> Row:
    """Serve the same requests with both engines and compare them."""
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


def judge(expected: Logprobs, found: Logprobs) -> Row:
    """Compare token by token, for each request up to a near tie that is decided differently."""
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


def serve(engine: Engine, model: ModelConfig, adapters: Sequence[Adapter | None]) -> Logprobs:
    """Serve requests that arrive while others run, each with a random adapter; greedy.

    Raises:
        RuntimeError: a request ended with an error.
    """
    draw, waiting = random.Random(5), list(range(REQUESTS))
    logprobs: Logprobs = {}
    while waiting or not engine.idle:
        while waiting and draw.random() < 0.3:
            name = str(waiting.pop(0))
            prompt = tuple(draw.randrange(2, model.vocab_size) for _ in range(draw.randrange(1, 40)))
            sampling = SamplingParams(draw.randrange(8, 24), temperature=0.0, ignore_eos=True, logprobs=2)
            engine.add_request(GenerateRequest(name, prompt, sampling), draw.choice(adapters))
        for delta in engine.step():
            if delta.error is not None:
                raise RuntimeError(f"request {delta.request_id}: {delta.error}")
            logprobs.setdefault(delta.request_id, []).extend(delta.logprobs)
    return logprobs


@cache
def _expected(model: ModelConfig, device: torch.device) -> Mapping[str, list[TokenLogprobs]]:
    engine, _ = _engine(device, Check("expected"))
    logprobs = serve(engine, model, _adapters(model, device))
    engine.close()
    return logprobs


def expected(model: ModelConfig, device: torch.device) -> Logprobs:
    """Return the log probabilities of eager execution, one step at a time, with room for all."""
    return dict(_expected(model, device))


@cache
def _adapters(model: ModelConfig, device: torch.device) -> tuple[Adapter | None, ...]:
    """Return adapters in pinned host memory, as the loader provides them."""
    made: list[Adapter | None] = [None]
    for index, rank in enumerate(RANKS):
        torch.manual_seed(index)
        adapter = random_adapter(index, model, rank, torch.device("cpu"))
        for pairs in adapter.layers:
            for pair in pairs.values():
                pair.b.mul_(STRENGTH)
        made.append(pack_adapter(adapter, pinned=device.type == "cuda"))
    return tuple(made)


def _engine(device: torch.device, check: Check) -> tuple[Engine, ModelConfig]:
    """Build an engine with the same weights each time. On a CPU, captures are re-run and copies are
    synchronous.
    """
    torch.manual_seed(11)
    options: dict[str, Any] = {
        "max_model_len": 128,
        "memory_gib": check.pages * PAGE_BYTES / 2**30,
        "max_num_seqs": 4,
        "max_adapters_per_batch": 2,
        "cuda_graphs": "lazy" if check.graphs else "off",
        "overlap": "on" if check.overlap else "off",
    }
    # Adapters are placed in pool pages on every device, as on CUDA.
    with mock.patch("worker_engine.model_runner.adapters_in_pages", return_value=True):
        return build_engine(True, device, **options)
