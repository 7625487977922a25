"""The engine says the same on a merged checkpoint as on the base with the adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.optimizer.merging.layouts import LAYOUTS, write_adapter, write_base
from tests.optimizer.merging.test_exact import merged_into
from tests.worker_engine.conftest import EngineFactory, drain, make_engine, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref, make_adapter
from tests.worker_engine.tiny_model import write_model
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.engine import Engine

__all__ = ["make_engine"]
PROMPT = list(range(40, 75))


def generate(engine: Engine, adapter: Adapter | None = None) -> list[int]:
    engine.add_request(request("r", PROMPT, 24), adapter)
    return tokens(drain(engine)["r"])


def loaded(base: Path, folder: Path, cache: Path) -> Adapter:
    loader = AdapterLoader(base, cache, dtype=torch.float32, device=torch.device("cpu"))
    return loader.load(adapter_ref(folder))


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_every_layout_generates_the_same_tokens(
    name: str, tmp_path: Path, make_engine: EngineFactory
) -> None:
    base = write_base(tmp_path / "base", LAYOUTS[name])
    folder = write_adapter(base, tmp_path / "adapter", LAYOUTS[name])
    merged = merged_into(base, folder, tmp_path / "merged")
    engine = make_engine(base)
    expected = generate(engine, loaded(base, folder, tmp_path / "cache"))
    assert generate(make_engine(merged)) == expected


@pytest.mark.parametrize("use_dora", [False, True])
def test_a_trained_layout_differs_from_the_base(
    use_dora: bool, tmp_path: Path, make_engine: EngineFactory
) -> None:
    base = write_model(tmp_path / "base", seed=1)
    folder = make_adapter(
        base, tmp_path / "adapter", seed=2, target_modules="all-linear", r=8, lora_alpha=64, use_dora=use_dora
    )
    merged = merged_into(base, folder, tmp_path / "merged")
    engine = make_engine(base)
    expected = generate(engine, loaded(base, folder, tmp_path / "cache"))
    assert generate(engine) != expected
    assert generate(make_engine(merged)) == expected
