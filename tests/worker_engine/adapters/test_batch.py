"""Over random comings and goings each adapter computes with its own weights, where they were loaded."""

from __future__ import annotations

import random
import weakref
from pathlib import Path

import pytest
import torch

from kernels.lora import LoraPair, LoraWeights, Segments
from kernels.lora import apply_lora as apply
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.checkpoint.model_config import LORA_MODULES, PACKED_MODULES, ModelConfig
from worker_engine.models import load_config


def draw_adapter(config: ModelConfig, draw: random.Random, number: int) -> Adapter:
    """Draw an adapter with ranks that vary by layer and module; some modules are left out."""
    layers = []
    for _ in range(config.num_layers):
        pairs = {}
        for name in LORA_MODULES:
            rank = draw.choice((0, 0, 1, 3, 4, 8))
            out, inner = config.linear_shapes[name]
            if rank:
                pairs[name] = LoraPair(torch.randn(rank, inner), torch.randn(rank, out))
        layers.append(pairs)
    nbytes = sum(pair.nbytes for layer in layers for pair in layer.values())
    return Adapter(f"{number:064x}", tuple(layers), nbytes)


def delta(weights: LoraWeights | None, index: int, x: torch.Tensor, width: int) -> torch.Tensor:
    out = torch.zeros(len(x), width)
    if weights is not None:
        apply(out, x, weights, Segments.group([index] * len(x)))
    return out


def check(batch: AdapterBatch, config: ModelConfig, adapter: Adapter, index: int) -> None:
    for layer in range(config.num_layers):
        for name, modules in PACKED_MODULES.items():
            lora = batch.layers[layer][name]
            x = torch.randn(2, config.linear_shapes[modules[0]][1])
            pairs = [(adapter.layers[layer].get(item), config.linear_shapes[item][0]) for item in modules]
            parts = [torch.zeros(2, out) if pair is None else x @ pair.a.T @ pair.b for pair, out in pairs]
            expected = torch.cat(parts, 1)
            found = delta(None if lora is None else lora.weights, index, x, expected.shape[1])
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_each_adapter_computes_its_own_whatever_came_before(seed: int, tiny_model: Path) -> None:
    draw, config = random.Random(seed), load_config(tiny_model)
    torch.manual_seed(seed)
    adapters = [draw_adapter(config, draw, number) for number in range(14)]
    batch = AdapterBatch(config, dtype=torch.float32)
    for _ in range(60):
        chosen = draw.sample(adapters, draw.choice((1, 2, 3, 6)))
        rows: list[Adapter | None] = [*chosen, None, chosen[0]]
        indices = batch.select(rows)
        assert indices[-2:] == [-1, indices[0]]
        assert len(set(indices[:-2])) == len(chosen)
        for adapter, index in zip(chosen[:2], indices, strict=False):
            check(batch, config, adapter, index)


def test_nothing_is_copied_and_nothing_kept_that_left(tiny_model: Path) -> None:
    config = load_config(tiny_model)
    adapters = [draw_adapter(config, random.Random(number), number) for number in range(12)]
    batch = AdapterBatch(config, dtype=torch.float32)
    indices = batch.select(adapters[:8])
    for adapter, index in zip(adapters, indices, strict=False):
        for layer, held in enumerate(batch.layers):
            for name, modules in PACKED_MODULES.items():
                for piece, module in enumerate(modules):
                    pair, lora = adapter.layers[layer].get(module), held[name]
                    assert lora is None or lora.weights is None or lora.weights.pairs[piece][index] is pair
    rebuilt = batch.num_rebuilt
    assert batch.select(adapters[4:8]) == indices[4:8]
    assert batch.num_rebuilt == rebuilt, "half of the batch left, and nobody came"
    gone = weakref.ref(adapters.pop(0))
    batch.select(adapters[5:7])
    assert gone() is None, "the tables keep an adapter that the pool let go of"
    batch.select([None])
    assert batch.layers == ()


def test_layers_of_the_same_ranks_share_a_layout(tiny_model: Path) -> None:
    config = load_config(tiny_model)
    pairs = {
        name: LoraPair(torch.randn(4, inner), torch.randn(4, out))
        for name, (out, inner) in config.linear_shapes.items()
    }
    batch = AdapterBatch(config, dtype=torch.float32)
    batch.select([Adapter("0" * 64, (pairs,) * config.num_layers, 0)])
    layouts = {
        lora.weights.layout for layer in batch.layers for lora in layer.values() if lora and lora.weights
    }
    assert len(layouts) == len(PACKED_MODULES)
