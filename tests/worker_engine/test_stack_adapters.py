"""All layers in one native call, with adapters: the bits of the layers one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import native
from kernels.lora import LoraPair, Segments
from kernels.native.stack import Adapters, Stack
from tests.worker_engine.forward_pass import LENGTHS, draw, load
from tests.worker_engine.test_quantized import plain, quantized
from tests.worker_engine.test_stack import folder, one_by_one
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch, HeldLayers
from worker_engine.checkpoint.model_config import LORA_MODULES, ModelConfig
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.models import load_config
from worker_engine.models.decoder import Batch, Decoder

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
__all__ = ["folder", "plain"]
PAGE_SIZE = 16


def draw_adapter(config: ModelConfig, source: random.Random, number: int, **changes: Any) -> Adapter:
    """bf16, of any ranks by layer and module; many modules, and some layers, left alone."""
    layers = []
    for _ in range(config.num_layers):
        ranks = (
            {} if source.random() < 0.2 else {name: source.choice((0, 1, 3, 8, 19)) for name in LORA_MODULES}
        )
        pairs = {}
        for name, rank in ranks.items():
            out, inner = config.linear_shapes[name]
            if rank:
                a, b = torch.randn(rank, inner) / inner**0.5, torch.randn(rank, out) / rank**0.5
                pairs[name] = LoraPair(a.bfloat16(), b.bfloat16())
        layers.append(pairs)
    nbytes = sum(pair.nbytes for layer in layers for pair in layer.values())
    return Adapter(f"{number:064x}", tuple(layers), nbytes, **changes)


@torch.inference_mode()
def states(
    model: Decoder, kv: KVCache, adapters: AdapterBatch, owners: Sequence[int], step: int
) -> torch.Tensor:
    """Hidden states of all prompts, `step` tokens of each at a time; prompt i has adapter owners[i]."""
    prompts, found = draw(LENGTHS), []
    pages = [list(range(1 + 8 * index, 9 + 8 * index))[::-1] for index in range(len(prompts))]
    for start in range(0, max(map(len, prompts)), step):
        parts = [range(start, min(start + step, len(prompt))) for prompt in prompts]
        live = [index for index, part in enumerate(parts) if len(part)]
        plan = AttentionPlan.build(
            [len(parts[index]) for index in live],
            [parts[index].stop for index in live],
            [pages[index] for index in live],
            page_size=PAGE_SIZE,
        )
        rows = [(index, at) for index in live for at in parts[index]]
        segments = Segments.group([owners[index] for index, _ in rows])
        batch = Batch(
            token_ids=torch.tensor([prompts[index][at] for index, at in rows]),
            positions=torch.tensor([at for _, at in rows]),
            attention=plan,
            output_rows=None,
            lora=() if segments.empty else adapters.layers,
            segments=segments,
            tops=adapters.tops(segments, segments),
        )
        found.append(model.forward(batch, kv))
    return torch.cat(found)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[Adapters | None]:
    made: list[Adapters | None] = []
    run = Stack.run_

    def noted(self: Stack, x: torch.Tensor, steps: Sequence[int], adapters: Adapters | None = None) -> None:
        made.append(adapters)
        run(self, x, steps, adapters)

    monkeypatch.setattr(Stack, "run_", noted)
    return made


@pytest.mark.parametrize("step", [1, 13, 128])
@pytest.mark.costly("compares layer by layer")
def test_adapters_add_what_they_do_layer_by_layer(
    folder: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several adapters of different ranks in batches with base rows; new ones reuse slots in between."""
    made, config, source = calls(monkeypatch), load_config(folder), random.Random(step)
    torch.manual_seed(step)
    adapters = [draw_adapter(config, source, number) for number in range(5)]
    batch = AdapterBatch(config, dtype=torch.bfloat16)
    model, kv = load(folder, torch.bfloat16)
    twin, twin_kv = load(folder, torch.bfloat16)
    one_by_one(twin)
    for chosen in ((0, None, 1, 0), (2, 1, None, None), (3, 4, 2, 0), (None,) * 4, (1, 1, 1, 1)):
        rows = (chosen * len(LENGTHS))[: len(LENGTHS)]
        owners = batch.select([None if each is None else adapters[each] for each in rows])
        before = len(made)
        found = states(model, kv, batch, owners, step)
        asked = made[before:]
        assert asked, "the stack was not asked"
        assert any(asked) is any(each is not None for each in rows)
        assert torch.equal(found, states(twin, twin_kv, batch, owners, step))
        assert len(made) == before + len(asked)
    assert torch.equal(kv._pages, twin_kv._pages)


@pytest.mark.parametrize("form", ["int4-64", "int4-128-zeros", "int8", "awq-64"])
def test_adapters_on_quantized_layers(plain: Path, tmp_path: Path, form: str) -> None:
    """Equal bit for bit to the layers one by one, and as near to dequantized weights as without adapters."""
    packed, whole = quantized(plain, tmp_path, form)
    config = load_config(whole)
    torch.manual_seed(5)
    adapter = draw_adapter(config, random.Random(5), 1)
    batch = AdapterBatch(config, dtype=torch.bfloat16)
    rows = ([adapter, None] * len(LENGTHS))[: len(LENGTHS)]
    owners = batch.select(rows)
    model, kv = load(packed, torch.bfloat16)
    found = states(model, kv, batch, owners, 5)
    twin, twin_kv = load(packed, torch.bfloat16)
    assert torch.equal(found, states(one_by_one(twin), twin_kv, batch, owners, 5))
    reference, reference_kv = load(whole, torch.bfloat16)
    base = [-1] * len(LENGTHS)
    with_adapters = states(reference, reference_kv, batch, owners, 5)
    without = states(reference, reference_kv, batch, base, 5)
    rounding = distance(states(model, kv, batch, base, 5), without)
    assert distance(found, with_adapters) < 2 * rounding < 0.3 < distance(without, with_adapters)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("extra", ["gains", "biases"])
def test_an_adapter_that_is_more_than_products_goes_layer_by_layer(
    folder: Path, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, config = calls(monkeypatch), load_config(folder)
    out = config.linear_shapes["o_proj"][0]
    more = {"model.layers.1.self_attn.o_proj": torch.full((out,), 2.0)}
    adapter = draw_adapter(config, random.Random(1), 1, **{extra: more})
    batch = AdapterBatch(config, dtype=torch.bfloat16)
    model, kv = load(folder, torch.bfloat16)
    owners = batch.select([adapter] * len(LENGTHS))
    changed = states(model, kv, batch, owners, 128)
    assert not made
    pairs = AdapterBatch(config, dtype=torch.bfloat16)
    owners = pairs.select([replace(adapter, gains={}, biases={})] * len(LENGTHS))
    assert not torch.equal(changed, states(model, kv, pairs, owners, 128))
    assert made


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    """The native code reads and writes at any address that it gets."""
    config = load_config(folder)
    model, kv = load(folder, torch.bfloat16)
    assert model._stack is not None
    batch = AdapterBatch(config, dtype=torch.bfloat16)
    batch.select([draw_adapter(config, random.Random(2), 1)])
    stack = model._stack._stack(kv)
    assert isinstance(batch.layers, HeldLayers)
    held = batch.layers.stacked
    assert held is not None
    held.demand_shapes(stack.shapes)
    segments = Segments.group([0, -1])
    products, owners = held.products(segments), segments.row_adapter
    x = torch.zeros(2, stack.shapes[0][1], dtype=torch.bfloat16)
    for rows, layers in ((3, held.layers), (2, held.layers + 1)):
        with pytest.raises(ValueError, match="adapters of"):
            stack.run_(x, [0] * stack.kinds, Adapters(rows, layers, held.address, products, owners))
    with pytest.raises(ValueError, match="adapters of"):
        stack.run_(x, [0] * stack.kinds, Adapters(2, held.layers, held.address, products, owners[:1]))
    with pytest.raises(ValueError, match="segments name adapter 1"):
        held.products(Segments.group([0, 1]))
    qkv, o, gate_up, down = stack.shapes
    with pytest.raises(ValueError, match="adapters of a linear layer"):
        held.demand_shapes((down, o, gate_up, qkv))
