"""Layers of experts in native calls: the bits of single calls, near PyTorch's operations, with adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels import native
from kernels.lora import LoraWeights, Segments
from tests.worker_engine.forward_pass import CPU, draw, load, logits
from tests.worker_engine.quantized_case import write_quantized
from tests.worker_engine.test_stack import one_by_one
from tests.worker_engine.test_stack_adapters import calls
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_engine.tiny_sparse import (
    EXPERTS,
    HOLDER,
    write_linear_adapter,
    write_sparse,
    write_stacked_adapter,
)
from worker_engine.adapters.adapter import Adapter, WeightAddresses
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.checkpoint.experts_config import EXPERT_MODULES
from worker_engine.models import load_config
from worker_engine.models.decoder import Decoder
from worker_engine.models.sparse import SparseLayer

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
PROMPTS = draw((35, 22, 9, 40, 12, 18))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse(tmp_path_factory.mktemp("sparse"), dtype="bfloat16")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter | None]:
    """Return adapters on experts, on the router, on both matrices of the shared expert, and no adapter."""
    root = tmp_path_factory.mktemp("adapters")
    folders = [
        write_stacked_adapter(root / "stacked", seed=1),
        write_linear_adapter(root / "router", f"{HOLDER}.gate"),
        write_linear_adapter(root / "shared", f"{HOLDER}.shared_expert.up_proj", rank=3),
        write_linear_adapter(root / "shared-down", f"{HOLDER}.shared_expert.down_proj"),
        write_linear_adapter(root / "one", f"{HOLDER}.experts.2.down_proj"),
    ]
    loader = AdapterLoader(base, root / "c", dtype=torch.bfloat16, device=CPU)
    return [*(loader.load(adapter_ref(folder)) for folder in folders), None]


def by_torch(model: Decoder) -> Decoder:
    for layer, _ in one_by_one(model)._layers:
        assert isinstance(layer, SparseLayer)
        layer._native = None
    return model


def computed(base: Path, step: int, owners: Sequence[Adapter | None], change: object = None) -> torch.Tensor:
    model, kv = load(base, torch.bfloat16)
    if callable(change):
        change(model)
    held = AdapterBatch(load_config(base), dtype=torch.bfloat16)
    return torch.cat(logits(model, kv, PROMPTS, step, held, owners))


@pytest.mark.parametrize("step", [1, 13, 64])
def test_one_call_for_all_layers_gives_the_bits_of_single_ones(
    base: Path, step: int, adapters: list[Adapter | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calls(monkeypatch)
    found = computed(base, step, adapters)
    assert any(made), "the stack was not asked"
    before = len(made)
    assert torch.equal(found, computed(base, step, adapters, one_by_one))
    assert len(made) == before


@pytest.mark.parametrize("form", ["bf16", "int8", "int4-32", "int4-32-zeros"])
def test_near_pytorchs_operations(
    base: Path, adapters: list[Adapter | None], form: str, tmp_path: Path
) -> None:
    """Each adapter's rows change by much more than the two differ by."""
    folder = base
    if form != "bf16":
        write_quantized(base, tmp_path / "q", tmp_path / "whole", form)
        folder = tmp_path / "q"
    found, wanted = computed(folder, 64, adapters), computed(folder, 64, adapters, by_torch)
    plain = computed(folder, 64, [None] * len(adapters))
    start = 0
    for prompt, owner in zip(PROMPTS, adapters, strict=True):
        rows = slice(start, start := start + len(prompt))
        error = (found[rows] - wanted[rows]).norm() / wanted[rows].norm()
        effect = (plain[rows] - wanted[rows]).norm() / wanted[rows].norm()
        assert error < 0.03, "near ties of experts' logits may be settled otherwise"
        assert owner is None or effect > 2 * error


def test_base_rows_keep_their_bits_when_adapters_come_and_go(
    base: Path, adapters: list[Adapter | None]
) -> None:
    model, kv = load(base, torch.bfloat16)
    alone = logits(model, kv, PROMPTS[-1:], 1)[0]
    held = AdapterBatch(load_config(base), dtype=torch.bfloat16)
    assert torch.equal(logits(model, kv, PROMPTS, 1, held, adapters)[-1], alone)
    assert torch.equal(logits(model, kv, PROMPTS[-1:], 1)[0], alone)


def test_addresses_of_experts_are_collected_when_an_adapter_is_loaded(
    base: Path, adapters: list[Adapter | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First use collects those of linear modules alone, of which a layer has a few."""
    config, collected = load_config(base), []
    collect = WeightAddresses.collect

    def noted(layers: object, modules: Sequence[str]) -> WeightAddresses:
        collected.append(len(modules))
        return collect(layers, modules)  # type: ignore[arg-type]

    monkeypatch.setattr(WeightAddresses, "collect", noted)
    batch = AdapterBatch(config, dtype=torch.bfloat16)
    batch.select(adapters)
    assert all(batch.layers[layer] is not None for layer in range(config.num_layers))
    assert max(collected, default=0) <= 3 < EXPERTS


def test_places_of_experts_are_those_of_their_pairs(base: Path, adapters: list[Adapter | None]) -> None:
    """By adapter, expert and slice, as the native code reads them."""
    batch = AdapterBatch(load_config(base), dtype=torch.bfloat16)
    owners = batch.select(adapters)
    assert set(EXPERT_MODULES) <= set(batch.layers[0])
    for name in EXPERT_MODULES:
        held = batch.layers[0][name]
        if held is None or held.weights is None:
            continue
        at = held.weights.kept["native"].kept[0]  # type: ignore[attr-defined]
        fresh = LoraWeights.of_pairs(held.weights.pairs, held.weights.layout)
        for piece, row in enumerate(fresh.pairs):
            for index, pair in enumerate(row):
                wanted = (0, 0) if pair is None else (pair.a.data_ptr(), pair.b.data_ptr())
                assert tuple(at[index, piece]) == wanted
    with pytest.raises(ValueError, match="segments name adapter"):
        batch.layers.stacked.products(Segments.group([max(owners) + 1]))  # type: ignore[attr-defined]
