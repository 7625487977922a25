"""Quantized checkpoints, with and without adapters, against transformers on the dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import native
from tests.parity import references
from tests.parity.conftest import Reference
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import draw, load, load_adapter, logits, prompts_for
from tests.worker_engine.test_quantized import LENGTHS, form, plain, quantized
from tests.worker_engine.tiny_adapter import make_adapter
from worker_engine.layers.linear_weight import NativeQuantizedWeight

__all__ = ["form", "plain"]


def reference_logits(whole: Path, dtype: torch.dtype) -> torch.Tensor:
    model: Any = references.LlamaForCausalLM.from_pretrained(whole, dtype=dtype)
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([prompt])).logits[0] for prompt in draw(LENGTHS)]).double()


@pytest.mark.parametrize("step", [1, 64])
def test_logits_are_those_of_the_weights_made_whole(
    plain: Path, tmp_path: Path, form: str, step: int
) -> None:
    """In fp32 but for its rounding; in bf16 with at most twice transformers' own error, and a rounding."""
    folder, whole = quantized(plain, tmp_path, form)
    exact = reference_logits(whole, torch.float64)
    model, kv = load(folder)
    single = torch.cat(logits(model, kv, draw(LENGTHS), step)).double()
    assert (single - exact).abs().max() <= 1e-4
    model, kv = load(folder, torch.bfloat16)
    half = torch.cat(logits(model, kv, draw(LENGTHS), step)).double()
    theirs = (reference_logits(whole, torch.bfloat16) - exact).abs().max()
    assert (half - exact).abs().max() <= 2 * theirs + 2**-8 * exact.abs().max()
    before = reference_logits(plain, torch.float64)
    assert (before - exact).abs().max() > 1e-2, "the weights are those from before: this proves nothing"


@pytest.mark.parametrize("form", ["int4-32", "int4-64", "int8", "awq-128"])
def test_adapters_work_on_top(plain: Path, tmp_path: Path, form: str, make_engine: EngineFactory) -> None:
    """The tokens of PEFT on the dequantized weights, from which DoRA's magnitudes come too."""
    folder, whole = quantized(plain, tmp_path, form)
    modules = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
    adapters = {
        "lora": make_adapter(whole, tmp_path / "lora", seed=1, r=6, target_modules=modules),
        "dora": make_adapter(whole, tmp_path / "dora", seed=2, r=4, target_modules=modules, use_dora=True),
    }
    prompts = prompts_for([None, *adapters], 256)
    reference = Reference.load(whole, adapters)
    expected = {name: reference.greedy(prompt, 24, name) for name, prompt in prompts.items()}
    assert expected["lora"] != reference.greedy(prompts["lora"], 24)
    engine = make_engine(folder)
    for name, prompt in prompts.items():
        adapter = load_adapter(folder, adapters[name], tmp_path / "c") if name else None
        engine.add_request(request(str(name), prompt, 24), adapter)
    made = drain(engine)
    assert {name: tokens(made[str(name)]) for name in prompts} == expected


def test_modules_that_are_not_alike_are_made_whole(plain: Path, tmp_path: Path) -> None:
    folder, whole = quantized(plain, tmp_path, "int4-32", skip=("k_proj", "layers.1.mlp.down_proj"))
    exact = reference_logits(whole, torch.float64)
    model, kv = load(folder)
    assert (torch.cat(logits(model, kv, draw(LENGTHS), 64)) - exact).abs().max() <= 1e-4
    model, _ = load(folder, torch.bfloat16)
    if native.LIBRARY is not None:
        kept = {
            name: isinstance(linear.packed, NativeQuantizedWeight)
            for name, linear in model.linears[1].items()
        }
        assert kept == {"qkv": False, "o": True, "gate_up": True, "down": False}
