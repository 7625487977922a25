"""Write random LoRA adapters in PEFT's layout, with numpy and safetensors alone.

`tests/parity/test_tiny_model.py` proves that PEFT loads them and writes the same config fields, tensor
names, shapes and dtypes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES, AdapterRef, adapter_digest, engine_name
from tests.worker_engine.tiny_model import Array, Weights, save_tensors, shapes_of

PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX: Final = "base_model.model."
CONFIG: Final[Mapping[str, Any]] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": False,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.0,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 8,
    "rank_pattern": {},
    "revision": None,
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
"""Every field that PEFT writes, with its default; `init_lora_weights` as in `make_adapter`."""

ADAPTER_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "narrow": {"r": 1, "lora_alpha": 1, "target_modules": ["v_proj"]},
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "all": {"r": 16, "lora_alpha": 16, "target_modules": list(PROJECTIONS)},
    "rslora": {"r": 64, "lora_alpha": 3, "use_rslora": True, "target_modules": ["o_proj", "down_proj"]},
    "patterns": {
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "up_proj"],
        "rank_pattern": {"k_proj": 3, r"layers\.1\.self_attn\.q_proj": 5},
        "alpha_pattern": {"up_proj": 20},
    },
}
"""Adapters of ranks 1 to 64, on different modules, with rsLoRA and with patterns."""


def make_adapter(
    model: Path, folder: Path, *, seed: int, target_modules: str | Sequence[str], **options: Any
) -> Path:
    """Write a random adapter for the checkpoint `model` with a non-zero B; return `folder`.

    Args:
        target_modules: last parts of modules' names, or "all-linear" for every projection.
        options: of PEFT's LoraConfig: r, lora_alpha, rank_pattern, alpha_pattern, use_rslora, use_dora.
    """
    config = {**CONFIG, "base_model_name_or_path": str(model), **options}
    config["target_modules"] = sorted(PROJECTIONS if target_modules == "all-linear" else target_modules)
    source = np.random.default_rng(seed)
    tensors: Weights = {}
    for name, shape in shapes_of(json.loads((model / "config.json").read_text())).items():
        module = name.removesuffix(".weight")
        if module == name or module.rpartition(".")[2] not in config["target_modules"]:
            continue
        pair = _random_pair(source, shape, _pattern(config["rank_pattern"], module, config["r"]))
        tensors |= {f"{PREFIX}{module}.lora_{part}.weight": value for part, value in pair.items()}
        if config["use_dora"]:
            scaling = _scaling(config, module, len(pair["A"]))
            whole = _read(model, name) + scaling * pair["B"] @ pair["A"]
            tensors[f"{PREFIX}{module}.lora_magnitude_vector"] = np.linalg.norm(whole, axis=1)
        if module == "lm_head":  # PEFT saves the base's head beside LoRA on it
            tensors[f"{PREFIX}{module}.base_layer.weight"] = _read(model, name)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    return folder


def _random_pair(source: np.random.Generator, shape: tuple[int, ...], rank: int) -> dict[str, Array]:
    """A and B as torch draws a linear layer's weight: uniform within 1/sqrt(inputs)."""
    rows, columns = shape
    return {
        part: source.uniform(-(size[1] ** -0.5), size[1] ** -0.5, size).astype(np.float32)
        for part, size in {"A": (rank, columns), "B": (rows, rank)}.items()
    }


def _pattern(patterns: Mapping[str, int], module: str, default: int) -> int:
    """The value of the first pattern that matches the end of a module's name, as in PEFT."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _scaling(config: Mapping[str, Any], module: str, rank: int) -> float:
    alpha = _pattern(config["alpha_pattern"], module, config["lora_alpha"])
    return float(alpha / (rank**0.5 if config["use_rslora"] else rank))


def _read(model: Path, name: str) -> Array:
    with safe_open(model / "model.safetensors", "numpy") as file:
        value: Array = file.get_tensor(name)
        return value


def write_adapters(model: Path, root: Path) -> dict[str, Path]:
    """Write the adapters of `ADAPTER_OPTIONS`; return their folders by name."""
    return {
        name: make_adapter(model, root / name, seed=index, **options)
        for index, (name, options) in enumerate(ADAPTER_OPTIONS.items())
    }


def adapter_ref(folder: Path, *, name: str = "some", rank: int = 64) -> AdapterRef:
    """Return the reference under which a folder's adapter is served."""
    names = (*ADAPTER_FILES, *(name for name in POOLING_FILES if (folder / name).is_file()))
    digest = adapter_digest(
        {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    )
    slug = engine_name(tenant="acme", adapter=name, version=1, sha256=digest)
    return AdapterRef(slug, folder.as_uri() + "/", digest, rank)


def write_merged(model: Path, adapter: Path, folder: Path) -> Path:
    """Write the fp32 checkpoint `model` with plain LoRA added to its weights; return `folder`."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights = load_file(model / "model.safetensors")
    pairs = load_file(adapter / "adapter_model.safetensors")
    for name, a in pairs.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            b = pairs[f"{PREFIX}{module}.lora_B.weight"]
            weights[f"{module}.weight"] += _scaling(config, module, len(a)) * b @ a
    save_tensors(folder / "model.safetensors", weights)
    return folder
