"""Engines on tiny checkpoints, requests to them, and the demo's adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.adapters.reference import ADAPTER_FILES
from tests.worker_process import Worker, run_worker
from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.models import load_config
from worker_engine.protocol import GenerateRequest, SamplingParams, TokenDelta
from worker_engine.text.tokenizer import ChatTokenizer

# One thread: tiny products gain nothing from two, and two that spin on a busy machine lose tenfold.
torch.set_num_threads(1)

EngineFactory = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> EngineFactory:
    """Builds an fp32 CPU engine on a checkpoint folder, with any of EngineConfig's fields changed."""

    def build(model: Path, **changes: Any) -> Engine:
        values: dict[str, Any] = {"memory_gib": 0.05, "adapter_cache_dir": tmp_path / "cache"}
        config = EngineConfig(model, "base", **(values | changes))
        return Engine(
            config, load_config(model), ChatTokenizer(model), dtype=torch.float32, device=torch.device("cpu")
        )

    return build


@pytest.fixture(scope="session")
def worker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One worker process for the tests that only call it; a module that needs other flags has its own."""
    with run_worker(tiny_model, tmp_path_factory.mktemp("worker"), "--memory-gib", "0.05") as worker:
        yield worker


def request(name: str, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> GenerateRequest:
    """Greedy and deaf to end-of-sequence unless `sampling` says otherwise."""
    values: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    return GenerateRequest(name, tuple(prompt), SamplingParams(max_tokens, **(values | sampling)))


def drain(engine: Engine) -> dict[str, list[TokenDelta]]:
    """Steps until nothing is left; deltas by request."""
    deltas: dict[str, list[TokenDelta]] = {}
    while not engine.idle:
        for delta in engine.step():
            deltas.setdefault(delta.request_id, []).append(delta)
    return deltas


def tokens(deltas: Sequence[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.fixture(scope="session")
def demo_adapters() -> dict[str, Path]:
    """The committed demo adapters by name."""
    root = Path(__file__).resolve().parents[2] / "demo" / "adapters"
    return {folder.name: folder for folder in sorted(root.iterdir()) if (folder / ADAPTER_FILES[1]).exists()}
