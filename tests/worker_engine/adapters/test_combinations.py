"""The worker is offered for an adapter exactly if its loader takes it: every module and kind of change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.needs import adapter_needs
from contracts.adapters.tensors import sort_tensors
from contracts.capabilities.capability import BaseNeeds
from contracts.capabilities.worker import WORKER
from tests.worker_engine.tiny_adapter import PREFIX, adapter_ref
from tests.worker_engine.tiny_model import Weights, save_tensors
from tests.worker_engine.tiny_sparse import EXPERTS, HIDDEN, INTER, write_sparse
from worker_engine.adapters.base_weights import BaseWeights
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.errors import AdapterRefused

Shapes = dict[str, tuple[int, ...]]
RANK: Final = 2
SPARSE, DENSE = "model.layers.0.", "model.layers.1."
MODULES: Final = (
    f"{DENSE}self_attn.k_proj",
    f"{DENSE}mlp.down_proj",
    f"{DENSE}input_layernorm",
    f"{SPARSE}mlp.gate",
    f"{SPARSE}mlp.shared_expert.up_proj",
    f"{SPARSE}mlp.shared_expert_gate",
    f"{SPARSE}mlp.experts.3.down_proj",
    f"{SPARSE}mlp.experts",
    "model.norm",
    "model.embed_tokens",
    "lm_head",
)


@dataclass(frozen=True)
class Change:
    """Tensors of one module by the suffix of their names, and options of the configuration."""

    tensors: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any]


def changes(module: str, weight: tuple[int, ...]) -> Iterator[tuple[str, Change]]:
    """Yield every kind of change of a module; some do not fit it, and registration refuses them."""
    kind = module.rpartition(".")[2]
    saved, pair = weight, Shapes()
    if module.endswith(".experts"):
        pair = {".lora_A.weight": (EXPERTS * RANK, INTER), ".lora_B.weight": (HIDDEN, EXPERTS * RANK)}
        target: dict[str, Any] = {"target_parameters": ["experts.down_proj"]}
        rows = HIDDEN
    else:
        rows, inner = weight[0], weight[-1]
        pair = {".lora_A.weight": (RANK, inner), ".lora_B.weight": (rows, RANK)}
        if kind == "embed_tokens":
            pair = {".lora_embedding_A": (RANK, rows), ".lora_embedding_B": (inner, RANK)}
            rows = inner
        target = {"target_modules": [kind]}
    magnitude: Shapes = {".lora_magnitude_vector": (rows,)}
    lora_bias: Shapes = {".lora_B.bias": (rows,)}
    bias: Shapes = {".base_layer.bias": (weight[0],)}
    copy: Shapes = {".base_layer.weight": saved}
    whole, tokens = {"modules_to_save": [kind]}, {"trainable_token_indices": {kind: [1, 2]}}
    dora, biased = {"use_dora": True}, {"lora_bias": True}
    yield "pair", Change(pair, target)
    yield "pair and a copy of the base", Change(pair | copy, target)
    yield "DoRA", Change(pair | magnitude, target | dora)
    yield "bias of B", Change(pair | lora_bias, target | biased)
    yield "DoRA and bias of B", Change(pair | magnitude | lora_bias, target | dora | biased)
    for scope in ("all", "lora_only"):
        yield f"pair and bias, {scope}", Change(pair | bias, target | {"bias": scope})
    yield "bias", Change({".bias": (weight[0],)}, {"target_modules": ["q_proj"], "bias": "all"})
    yield "weight", Change({".weight": saved}, whole)
    yield "weight and bias", Change({".weight": saved, ".bias": (weight[0],)}, whole)
    yield "bias of a saved module", Change({".bias": (weight[0],)}, whole)
    yield "parameter", Change({"": saved}, whole)
    yield "rows", Change({".token_adapter.trainable_tokens_delta": (2, weight[-1])}, tokens)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in which every matrix has a bias, so that only the loader's rules can refuse one."""
    folder = write_sparse(tmp_path_factory.mktemp("sparse"))
    weights: Weights = dict(load_file(folder / "model.safetensors"))
    biases = {
        name.removesuffix("weight") + "bias": np.ones(value.shape[0], np.float32)
        for name, value in weights.items()
    }
    save_tensors(folder / "model.safetensors", weights | biases)
    return folder


def write(folder: Path, change: Change, module: str, base: Path) -> Path:
    weights = load_file(base / "model.safetensors")
    source = np.random.default_rng(1)
    tensors: Weights = {}
    for suffix, shape in change.tensors.items():
        copied = weights.get(f"{module}.weight") if suffix == ".base_layer.weight" else None
        drawn = source.uniform(0.1, 1.0, shape).astype(np.float32)
        tensors[f"{PREFIX}{module}{suffix}"] = drawn if copied is None else copied
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, **change.options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def is_offered(folder: Path, base: BaseWeights) -> bool | None:
    """Return True if the capability says that the worker serves the adapter; None if registration refuses."""
    shapes = {name: tensor.shape for name, tensor in load_file(folder / "adapter_model.safetensors").items()}
    config = LoraConfig.from_bytes((folder / "adapter_config.json").read_bytes())
    config = config.for_tensors(shapes, base.shapes, base.config.architecture)
    try:
        modules = sort_tensors(config, shapes, base.shapes)
    except AdapterConfigError:
        return None
    needs = adapter_needs(config, modules, base.shapes)
    return not WORKER.adapter_problem(BaseNeeds(base.config.architecture), needs)


def loads(folder: Path, base: Path) -> bool:
    loader = AdapterLoader(base, folder / "cache", dtype=torch.float32, device=torch.device("cpu"))
    try:
        loader.load(adapter_ref(folder, rank=RANK))
    except AdapterRefused:
        return False
    return True


@pytest.mark.parametrize("module", MODULES)
def test_an_adapter_is_offered_exactly_if_it_loads(module: str, base: Path, tmp_path: Path) -> None:
    held = BaseWeights(base, torch.float32)
    offered: dict[str, bool] = {}
    loaded: dict[str, bool] = {}
    shape = held.shapes.get(f"{module}.weight", (EXPERTS, HIDDEN, INTER))
    for at, (name, change) in enumerate(changes(module, shape)):
        folder = write(tmp_path / str(at), change, module, base)
        if (is_served := is_offered(folder, held)) is not None:
            offered[name], loaded[name] = is_served, loads(folder, base)
    assert offered == loaded
    assert any(loaded.values())
