"""The 8-bit head against transformers and PEFT on its dequantized weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.parity import references
from tests.parity.conftest import Reference, write_peft_adapter
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import draw, load, load_adapter, logits, prompts_for
from tests.worker_engine.test_int8_head import LENGTHS, quantized, tied, written

__all__ = ["tied"]
ADAPTERS: Final[Mapping[str, dict[str, Any]]] = {
    "lora": {"r": 6, "target_modules": ["lm_head", "v_proj"]},
    "dora": {"r": 4, "target_modules": ["lm_head"], "use_dora": True},
    "saved": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "tokens": {"r": 4, "target_modules": ["q_proj"], "trainable_token_indices": {"lm_head": [5, 6, 200]}},
}


def reference_logits(whole: Path, dtype: torch.dtype) -> torch.Tensor:
    model: Any = references.LlamaForCausalLM.from_pretrained(whole, dtype=dtype)
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([prompt])).logits[0] for prompt in draw(LENGTHS)]).double()


def test_logits_are_those_of_the_head_made_whole(tied: bool, tmp_path: Path) -> None:
    """In fp32 but for its rounding; in bf16 with at most twice transformers' own error, and a rounding."""
    folder, whole = quantized(written(tmp_path / "plain", tied=tied), tmp_path)
    exact = reference_logits(whole, torch.float64)
    model, kv = load(folder)
    assert (torch.cat(logits(model, kv, draw(LENGTHS), 64)).double() - exact).abs().max() <= 1e-4
    plain, kv = load(whole.with_name("plain"))
    assert torch.equal(model._embedding, plain._embedding), "what is looked up is not rounded"
    model, kv = load(folder, torch.bfloat16)
    half = torch.cat(logits(model, kv, draw(LENGTHS), 64)).double()
    theirs = (reference_logits(whole, torch.bfloat16) - exact).abs().max()
    assert (half - exact).abs().max() <= 2 * theirs + 2**-8 * exact.abs().max()


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_adapters_that_change_the_head(tmp_path: Path, make_engine: EngineFactory) -> None:
    """Adapters of the plain base generate PEFT's tokens on the dequantized head, also with DoRA."""
    plain = written(tmp_path / "plain", tied=False)
    folder, whole = quantized(plain, tmp_path)
    made = {
        name: write_peft_adapter(plain, tmp_path / name, seed=seed, **options)
        for seed, (name, options) in enumerate(ADAPTERS.items())
    }
    prompts = prompts_for([None, *made], 256)
    expected: dict[str | None, list[int]] = {None: Reference.load(whole, {}).greedy(prompts[None], 24)}
    for own, path in made.items():  # each alone: PEFT has no two kinds of wrapper around one module
        reference = Reference.load(whole, {own: _without_the_base(path)})
        expected[own] = reference.greedy(prompts[own], 24, own)
    engine = make_engine(folder)
    for name, prompt in prompts.items():
        adapter = load_adapter(folder, made[name], tmp_path / "c") if name else None
        engine.add_request(request(str(name), prompt, 24), adapter)
    told = drain(engine)
    assert {name: tokens(told[str(name)]) for name in prompts} == expected


def _without_the_base(adapter: Path) -> Path:
    """PEFT saves the plain head beside LoRA on it, and would put it into the reference."""
    copy = shutil.copytree(adapter, adapter.with_name(f"{adapter.name}-alone"))
    path = copy / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if "base_layer" not in name}
    save_file(kept, path, metadata={"format": "pt"})
    return copy
