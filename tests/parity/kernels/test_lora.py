"""The CPU path against PEFT's own layers, which know nothing of ours: DoRA and the embedding form."""

from __future__ import annotations

from typing import Any

import torch

from kernels.lora import LoraPair, Owners, Segments, apply_lora, concatenate, embed_lora
from tests.parity import references


def test_dora_is_pefts() -> None:
    """A layer with bias, one DoRA adapter, one plain one, a base row."""
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(24, 18))
    given: dict[str, Any] = {"target_modules": ["0"], "init_lora_weights": False}
    model: Any = references.get_peft_model(
        base, references.LoraConfig(r=4, lora_alpha=8, use_dora=True, **given), adapter_name="dora"
    )
    model.add_adapter("plain", references.LoraConfig(r=2, lora_alpha=2, **given))
    layer = model.base_model.model[0].eval()
    magnitude = layer.lora_magnitude_vector["dora"]
    x = torch.randn(4, 24)
    with torch.no_grad():
        magnitude.weight.mul_(torch.rand(18) + 0.5)
        linear = layer.base_layer
        expected = linear(x)
        for rows, name in (([0], "plain"), ([1, 3], "dora")):  # PEFT mixes no DoRA into a batch
            layer.set_adapter(name)
            expected[rows] = layer(x[rows])
        pairs: list[LoraPair | None] = [
            LoraPair(layer.lora_A[name].weight, (layer.lora_B[name].weight * layer.scaling[name]).T)
            for name in ("dora", "plain")
        ]
        assert pairs[0] is not None
        norm = (linear.weight + (pairs[0].a.T @ pairs[0].b).T).norm(dim=1)
        weights = concatenate([pairs], [18], Owners())
        assert weights is not None
        out = linear(x)
        gain = torch.stack([magnitude.weight / norm, torch.ones(18)])
        apply_lora(out, x, weights, Segments.group([1, 0, -1, 0]), gain=gain, bias=linear.bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_embedding_is_pefts() -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Embedding(50, 18))
    given: dict[str, Any] = {"target_modules": ["0"], "init_lora_weights": False}
    config = references.LoraConfig(r=4, lora_alpha=8, **given)
    model: Any = references.get_peft_model(base, config, adapter_name="first")
    model.add_adapter("second", references.LoraConfig(r=2, lora_alpha=2, **given))
    layer = model.base_model.model[0].eval()
    tokens = torch.tensor([49, 0, 7, 7])
    with torch.no_grad():
        expected = layer(tokens, adapter_names=["second", "first", "__base__", "first"])
        pairs: list[LoraPair | None] = [
            LoraPair(layer.lora_embedding_A[name], layer.lora_embedding_B[name].T * layer.scaling[name])
            for name in ("first", "second")
        ]
        weights = concatenate([pairs], [18], Owners())
        assert weights is not None
        out = layer.base_layer(tokens)
        embed_lora(out, tokens, weights, Segments.group([1, 0, -1, 0]))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
