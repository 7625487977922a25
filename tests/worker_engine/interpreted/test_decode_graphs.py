"""Replayed decode steps with the kernels that captured CUDA graphs launch, and with every other op's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels import selection
from tests.worker_engine.conftest import tokens
from tests.worker_engine.graph_case import CPU, Run, build_engine, compare, load_adapters
from tests.worker_engine.late_copies import delay, tier_of
from tests.worker_engine.tiny_adapter import make_adapter
from tests.worker_engine.tiny_model import write_model
from worker_engine import model_runner

pytestmark = pytest.mark.costly("Triton's interpreter")
ADAPTERS: dict[str, dict[str, Any]] = {
    "small": {"r": 2, "target_modules": ["q_proj", "v_proj"]},
    "wide": {"r": 20, "target_modules": ["k_proj", "o_proj", "up_proj"]},
    "all": {"r": 8, "target_modules": "all-linear"},
}

PAGE_GIB = 2 * 2 * 16 * 12 * 4 / 2**30
"""Of the model below, in fp32."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes of which none is a power of two, those of half of the layers not even a multiple of 8."""
    sizes: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return write_model(tmp_path_factory.mktemp("model"), seed=3, **sizes, **heads)


@pytest.fixture
def kernels() -> Iterator[None]:
    yield
    selection.select([], CPU)


@pytest.mark.parametrize(
    "every", [pytest.param(False, id="graphs"), pytest.param(True, id="every-op", marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("kernels")
def test_adapters_that_come_and_go(model: Path, tmp_path: Path, every: bool) -> None:
    """The eager engine computes with PyTorch's operations throughout."""
    folders = {
        name: make_adapter(model, tmp_path / name, seed=seed, lora_alpha=4, **options)
        for seed, (name, options) in enumerate(ADAPTERS.items())
    }
    adapters = [None, *load_adapters(model, folders, tmp_path / "cache").values()]
    eager = Run(build_engine(model, replays=False, max_num_seqs=4))
    eager.serve(adapters, 7, prompt=20, out=14)
    selection.select(selection.OPS if every else ("lora_graph", "attention_graph"), CPU)
    replayed = Run(build_engine(model, replays=True, max_num_seqs=4))
    replayed.serve(adapters, 7, prompt=20, out=14)
    compare(eager, replayed)
    assert replayed.engine.graphs is not None
    assert replayed.engine.graphs.num_replays > 10
    assert not replayed.engine.graphs.num_refused


@pytest.mark.usefixtures("kernels")
def test_adapters_that_arrive_in_pages_while_a_step_is_in_flight(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured launches over the pool's pages, whose copies are done when they are waited for."""
    folders = {
        name: make_adapter(model, tmp_path / name, seed=seed, lora_alpha=4, **options)
        for seed, (name, options) in enumerate(ADAPTERS.items())
    }
    adapters = [None, *load_adapters(model, folders, tmp_path / "cache").values()]
    plain = Run(build_engine(model, replays=False, max_num_seqs=3))
    plain.serve(adapters, 8, prompt=20, out=12)
    selection.select(("lora_graph", "attention_graph"), CPU)
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)
    options: dict[str, Any] = {
        "overlap": "on",
        "max_num_seqs": 3,
        "max_adapters_per_batch": 2,
        "memory_gib": 19 * PAGE_GIB,
    }
    paged = Run(build_engine(model, replays=True, **options))
    stream = delay(paged.engine)
    paged.serve(adapters, 8, prompt=20, out=12)
    said = [
        {name: tokens(deltas) for name, deltas in run.deltas.items() if tokens(deltas)}
        for run in (plain, paged)
    ]
    assert said[0] == said[1]
    assert stream.done > 0
    assert tier_of(paged.engine).num_loads >= len(folders)
    assert paged.engine.graphs is not None
    assert paged.engine.graphs.num_replays > 10
