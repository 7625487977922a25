"""Tiny random GPT-OSS checkpoints, plain and in MXFP4, and adapters by the formulas of their layouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.parity import references
from tests.parity.worker_engine.sparse_adapters import Written, sparse_layers
from tests.worker_engine.forward_pass import SIZES, WINDOW
from tests.worker_engine.tiny_model import write_tokenizer

Made = Callable[[str], tuple[Path, Any]]
MXFP4: Final = "-mxfp4"
"""Suffix of a case whose experts are in MXFP4."""
CASES: Final[Mapping[str, dict[str, Any]]] = {
    "gpt-oss": {"intermediate_size": 36, "num_local_experts": 7},
    # As the published sizes: down_proj does not tell in from out.
    "gpt-oss-square": {"hidden_size": 64, "intermediate_size": 64, "num_local_experts": 4},
}
_COMMON: Final = {
    "num_hidden_layers": 3,
    "num_experts_per_tok": 2,
    "head_dim": 32,
    "sliding_window": WINDOW,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
_CODES: Final = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def make_gpt_oss(factory: pytest.TempPathFactory) -> Made:
    """Return what writes a case's checkpoint once, and gives its folder and transformers' model."""

    @cache
    def make(name: str) -> tuple[Path, Any]:
        if name.endswith(MXFP4):
            return _quantized(*make(name.removesuffix(MXFP4)), factory.mktemp(name))
        torch.manual_seed(5)
        config = references.GptOssConfig(**(SIZES | _COMMON | CASES[name]))
        config._attn_implementation, config._experts_implementation = "eager", "eager"
        model = references.GptOssForCausalLM(config).eval()
        for key, value in model.named_parameters():
            _draw(key, value.data)
        folder = factory.mktemp(name)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        return folder, model

    return make


def _draw(name: str, value: torch.Tensor) -> None:
    """Draw values with which sinks, biases and the clamp at 7 all matter."""
    if name.endswith("norm.weight"):
        value.normal_(1.0, 0.4)
    elif name.endswith(("bias", "sinks")):
        value.normal_(0.5, 1.0)
    else:
        value.normal_(0.0, 0.6 if name.endswith("gate_up_proj") else 0.2)


def _quantized(source: Path, model: Any, folder: Path) -> tuple[Path, Any]:
    """Exchange the experts for random ones in MXFP4; return the folder, and a model of the widened values."""
    widened = type(model)(model.config).eval()
    widened.load_state_dict(model.state_dict())
    tensors = load_file(source / "model.safetensors")
    draw = torch.Generator().manual_seed(7)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, out = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, out, inner // 32, 16), generator=draw, dtype=torch.uint8)
        scales = torch.randint(121, 126, (experts, out, inner // 32), generator=draw, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        nibbles = torch.stack((blocks % 16, blocks // 16), -1).flatten(-2).long()
        values = torch.where(nibbles < 8, 1.0, -1.0) * _CODES[nibbles % 8]
        values *= 2.0 ** (scales.float()[..., None] - 127.0)
        widened.get_parameter(name).data = values.flatten(-2).transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    for file in source.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder, widened


def write_stacks(model: Any, folder: Path, **options: Any) -> Written:
    """Write stacked pairs with A on the inputs, as every version of PEFT does for this family."""
    made = Written(model)
    for holder in sparse_layers(model):
        # `exchanged` is about [experts, out, in]; transformers holds this family's [experts, in, out].
        made.stack(holder, "gate_up_proj", ".base_layer", 4, 1.5, exchanged=True)
        made.stack(holder, "down_proj", "", 3, 2.0, exchanged=True)
        made.linear(f"{holder}.router", 4, 1.5)
    made.save(
        folder,
        r=4,
        lora_alpha=6,
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "router.weight"],
        rank_pattern={"experts.down_proj": 3},
        **options,
    )
    return made


def write_older(model: Any, folder: Path) -> Written:
    return write_stacks(model, folder, peft_version="0.18.1")


def write_singles(model: Any, folder: Path) -> Written:
    """Write pairs of single experts, some of them absent, beside attention: gate and up by themselves."""
    made = Written(model)
    for holder in sparse_layers(model):
        for number in range(3):
            path = f"{holder}.experts.{number}"
            gate_up = made.change(f"{holder}.experts.gate_up_proj")[number]
            names = {"up_proj": (gate_up[:, 1::2], 6), "gate_proj": (gate_up[:, ::2], 4)}
            if number:
                names["down_proj"] = (made.change(f"{holder}.experts.down_proj")[number], 4)
            for name, (change, rank) in list(names.items())[number % 2 :]:
                a, b = made.pair(f"{path}.{name}", rank, *change.shape)
                change.add_(2.0 * (b @ a).T)
    for index in range(len(model.model.layers)):
        made.linear(f"model.layers.{index}.self_attn.q_proj", 4, 2.0)
        made.linear(f"model.layers.{index}.self_attn.o_proj", 4, 2.0)
    made.save(
        folder,
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"up_proj": 6},
        alpha_pattern={"up_proj": 12},
    )
    return made


def write_lists(model: Any, folder: Path) -> Written:
    """Write pairs of single experts as trainers do that hold each projection's experts in a list."""
    made = Written(model)
    for holder in sparse_layers(model):
        for number in range(model.config.num_local_experts):
            for name in ("gate_up_proj", "down_proj"):
                change = made.change(f"{holder}.experts.{name}")[number]
                a, b = made.pair(f"{holder}.experts.{name}s.{number}", 4, *change.shape)
                change.add_(2.0 * (b @ a).T)
    made.save(folder, r=4, lora_alpha=8, target_modules=r".*\.(gate_up|down)_projs\.\d+")
    return made


WRITERS: Final[Mapping[str, Callable[[Any, Path], Written]]] = {
    "stacks": write_stacks,
    "older": write_older,
    "singles": write_singles,
    "lists": write_lists,
}
