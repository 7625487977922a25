"""The same requests through an engine that replays its decode steps and through an eager one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels.capture import Captures, Reruns
from tests.worker_engine.conftest import request
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.models import load_config
from worker_engine.protocol import TokenDelta
from worker_engine.text.tokenizer import ChatTokenizer

CPU = torch.device("cpu")


def build_engine(model: Path, *, replays: bool, captures: Captures | None = None, **config: Any) -> Engine:
    values: dict[str, Any] = {"memory_gib": 0.02, "max_num_seqs": 12, "cuda_graphs": "lazy"}
    return Engine(
        EngineConfig(model, "base", **(values | config)),
        load_config(model),
        ChatTokenizer(model),
        dtype=torch.float32,
        device=CPU,
        captures=captures or Reruns() if replays else None,
    )


def load_adapters(model: Path, folders: Mapping[str, Path], cache: Path) -> dict[str, Adapter]:
    loader = AdapterLoader(model, cache, max_bytes=1 << 30, dtype=torch.float32, device=CPU)
    return {name: loader.load(adapter_ref(folder)) for name, folder in folders.items()}


@dataclass
class Run:
    """Record of an engine's steps.

    Attributes:
        logits: of each step.
        deltas: by request.
    """

    engine: Engine
    logits: list[torch.Tensor] = field(default_factory=list)
    deltas: dict[str, list[TokenDelta]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runner = self.engine._runner
        run = runner.run

        def watched(*args: Any) -> Any:
            logits, sampled = run(*args)
            self.logits.append(logits.clone())
            return logits, sampled

        runner.run = watched  # type: ignore[method-assign, assignment]

    def step(self) -> None:
        for delta in self.engine.step():
            self.deltas.setdefault(delta.request_id, []).append(delta)

    def serve(self, adapters: Sequence[Adapter | None], count: int, *, prompt: int, out: int) -> None:
        """Requests that come and go, with the adapters in an order of chance; prompts of up to `prompt`."""
        draw = random.Random(4)
        waiting = list(range(count))
        while waiting or not self.engine.idle:
            while waiting and draw.random() < 0.5:
                name = str(waiting.pop(0))
                tokens = [draw.randrange(250) for _ in range(draw.randrange(1, prompt))]
                asked = request(name, tokens, draw.randrange(2, out), logprobs=2)
                self.engine.add_request(asked, draw.choice(adapters))
            self.step()


def compare(eager: Run, replayed: Run) -> None:
    """Logits of every step to 1e-5, the same tokens, and the same keys and values outside of page 0."""
    assert len(eager.logits) == len(replayed.logits)
    for ours, theirs in zip(replayed.logits, eager.logits, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    told = [
        {
            name: [token for delta in deltas for token in delta.token_ids]
            for name, deltas in run.deltas.items()
        }
        for run in (eager, replayed)
    ]
    assert told[0] == told[1]
    caches = [run.engine._runner._cache._pages[:, :, :, 1:] for run in (eager, replayed)]
    torch.testing.assert_close(caches[0], caches[1], rtol=0, atol=1e-5)
    assert replayed.engine.pool.num_used == 0
