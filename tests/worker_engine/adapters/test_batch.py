"""The device's tier: over random comings and goings every adapter's rows hold its weights, within bounds."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from kernels.lora import LoraPair, LoraWeights, Segments
from kernels.lora import apply_lora as apply
from worker_engine.adapters import batch as module
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import SLACK, AdapterBatch
from worker_engine.adapters.rank_store import GROWTH, RowRanges
from worker_engine.model_config import LORA_MODULES, PACKED_MODULES, ModelConfig
from worker_engine.models import load_config


def draw_adapter(config: ModelConfig, draw: random.Random, number: int) -> Adapter:
    """Of any ranks, by layer and module; some modules left alone."""
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
        apply(out, x, weights, Segments.of([index] * len(x)))
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
def test_each_adapter_computes_its_own_whatever_came_before(
    seed: int, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 4)
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
    assert batch.num_copied > batch.num_rebuilt
    for _ in range(6):
        batch.select([adapters[0]])
    assert batch.nbytes <= SLACK * adapters[0].nbytes


def test_a_newcomer_of_the_same_shape_is_all_that_is_copied(tiny_model: Path) -> None:
    config, torch_rank = load_config(tiny_model), 4
    adapters = []
    for number in range(40):
        pairs = {
            name: LoraPair(torch.randn(torch_rank, inner), torch.randn(torch_rank, out))
            for name, (out, inner) in config.linear_shapes.items()
        }
        nbytes = config.num_layers * sum(pair.nbytes for pair in pairs.values())
        adapters.append(Adapter(f"{number:064x}", (pairs,) * config.num_layers, nbytes))
    batch = AdapterBatch(config, dtype=torch.float32)
    batch.select(adapters[:8])
    rebuilt, copied, nbytes = batch.num_rebuilt, batch.num_copied, batch.nbytes
    for first in range(1, 33):
        batch.select(adapters[first : first + 8])
    assert batch.num_rebuilt == rebuilt
    assert batch.num_copied == copied + 32
    assert batch.nbytes == nbytes <= GROWTH * 8 * adapters[0].nbytes
    assert batch.select([adapters[32]])[0] in range(12)
    assert batch.num_copied == copied + 32, "one that is still there was copied again"


def test_row_ranges_never_overlap_and_come_back_whole() -> None:
    draw, ranges = random.Random(1), RowRanges(64)
    held: list[tuple[int, int]] = []
    for _ in range(2000):
        if held and draw.random() < 0.5:
            ranges.give_back(*held.pop(draw.randrange(len(held))))
        elif ranges.find(count := draw.randrange(0, 20)) is not None:
            held.append((ranges.take(count), count))
        taken = sorted(span for span in held if span[1])
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(taken))
    for span in held:
        ranges.give_back(*span)
    assert ranges.take(64) == 0
    with pytest.raises(ValueError, match="no gap of 1"):
        ranges.take(1)
