"""The stated capability of the worker equals what its loader takes: one adapter of each trait is tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from contracts.capabilities.traits import Trait
from contracts.capabilities.worker import LATENT, LATENT_TRAITS, SPARSE, SPARSE_TRAITS, TRAITS, WORKER
from tests.worker_engine.tiny_adapter import PREFIX, adapter_ref, make_adapter
from tests.worker_engine.tiny_model import family_config, random_weights, save_tensors
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.checkpoint import quantization_config
from worker_engine.errors import AdapterRefused
from worker_engine.models import FAMILIES

Shape = tuple[int, ...]
RANK, VOCABULARY, HIDDEN = 4, 64, 32
LAYER: Final = "model.layers.0."


@dataclass(frozen=True)
class Case:
    """An adapter's options and tensors beside LoRA on q_proj, and a layer that the base has for it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Shape] = field(default_factory=dict)
    layer: str = ""
    targets: tuple[str, ...] = ("q_proj",)
    files: Mapping[str, Any] = field(default_factory=dict)


def on_layer(path: str) -> Case:
    """LoRA on a further linear layer of 48 x 32, which is in the base's checkpoint too."""
    pair = {f"{path}.lora_A.weight": (RANK, HIDDEN), f"{path}.lora_B.weight": (48, RANK)}
    return Case({}, pair, path, ("q_proj", path.rpartition(".")[2]))


CASES: Final[Mapping[Trait, Case]] = {
    # The loader goes by a layer's last name: the base has no such expert here.
    Trait.EXPERTS: replace(on_layer(f"{LAYER}mlp.experts.0.up_proj"), layer=""),
    Trait.STACKED_EXPERTS: Case({"target_parameters": ["mlp.experts.gate_up_proj"]}),
    Trait.SHARED_EXPERTS: on_layer(f"{LAYER}mlp.shared_expert.up_proj2"),
    Trait.ROUTER: on_layer(f"{LAYER}mlp.gate"),
    Trait.LATENT_ATTENTION: on_layer(f"{LAYER}self_attn.q_a_proj"),
    Trait.ABSORBED_PROJECTION: on_layer(f"{LAYER}self_attn.kv_b_proj"),
    Trait.FUSED_PROJECTIONS: on_layer(f"{LAYER}self_attn.qkv_proj"),
    # A family that the worker serves fuses no layers: the base's file lacks the part.
    Trait.SPLIT_PROJECTIONS: replace(on_layer(f"{LAYER}mlp.half_proj"), layer=""),
    Trait.LINEAR_ATTENTION: on_layer(f"{LAYER}linear_attn.in_proj_qkvz"),
    Trait.STATE_SPACE: on_layer(f"{LAYER}mixer.in_proj"),
    Trait.VISION: on_layer("vision_tower.blocks.0.q_proj"),
    Trait.AUDIO: on_layer("audio_tower.layers.0.k_proj"),
    Trait.OTHER_MODULES: on_layer(f"{LAYER}mlp.odd_proj"),
    Trait.EMBEDDING: Case(
        {},
        {
            "model.embed_tokens.lora_embedding_A": (RANK, VOCABULARY),
            "model.embed_tokens.lora_embedding_B": (HIDDEN, RANK),
        },
        targets=("q_proj", "embed_tokens"),
    ),
    Trait.HEAD: Case(
        {},
        {"lm_head.lora_A.weight": (RANK, HIDDEN), "lm_head.lora_B.weight": (VOCABULARY, RANK)},
        targets=("q_proj", "lm_head"),
    ),
    Trait.DORA: Case({"use_dora": True}, {f"{LAYER}self_attn.q_proj.lora_magnitude_vector": (HIDDEN,)}),
    Trait.BIAS: Case({"bias": "lora_only"}, {f"{LAYER}self_attn.q_proj.base_layer.bias": (HIDDEN,)}),
    Trait.LORA_BIAS: Case({"lora_bias": True}, {f"{LAYER}self_attn.q_proj.lora_B.bias": (HIDDEN,)}),
    Trait.SAVED_MODULES: Case({"modules_to_save": ["lm_head"]}, {"lm_head.weight": (VOCABULARY, HIDDEN)}),
    Trait.OTHER_CHANGES: Case(
        {"modules_to_save": ["k_proj"]}, {f"{LAYER}self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN)}
    ),
    Trait.TRAINED_ROWS: Case(
        {"trainable_token_indices": {"embed_tokens": [1, 5]}},
        {"model.embed_tokens.token_adapter.trainable_tokens_delta": (2, HIDDEN)},
    ),
    Trait.CLASSIFICATION: Case({"task_type": "SEQ_CLS"}),
    Trait.TAGGING: Case({"task_type": "TOKEN_CLS"}),
    Trait.FEATURE_EXTRACTION: Case({"task_type": "FEATURE_EXTRACTION"}),
    Trait.OWN_POOLING: Case(
        {"task_type": "FEATURE_EXTRACTION"}, files={"1_Pooling/config.json": {"pooling_mode": "mean"}}
    ),
    Trait.OTHER_POOLING: Case(
        {"task_type": "FEATURE_EXTRACTION"}, files={"1_Pooling/config.json": {"pooling_mode": "max"}}
    ),
    Trait.SEQUENCE_TO_SEQUENCE: Case({"task_type": "SEQ_2_SEQ_LM"}),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose file has the layers of every case, so that only their kind can be refused."""
    folder = tmp_path_factory.mktemp("base")
    config = family_config(
        "qwen2",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    (folder / "config.json").write_text(json.dumps(config))
    layers = {
        f"{case.layer}.weight": np.ones((48, HIDDEN), np.float32) for case in CASES.values() if case.layer
    }
    save_tensors(folder / "model.safetensors", random_weights(config, seed=3) | layers)
    return folder


def adapter_of(base: Path, folder: Path, case: Case) -> Path:
    """Write the adapter of a case."""
    q_proj = {
        f"{LAYER}self_attn.q_proj.lora_A.weight": (RANK, HIDDEN),
        f"{LAYER}self_attn.q_proj.lora_B.weight": (HIDDEN, RANK),
    }
    make_adapter(base, folder, seed=1, r=RANK, target_modules=["q_proj"])
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"target_modules": list(case.targets), **case.options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    source = np.random.default_rng(1)
    tensors = {
        f"{PREFIX}{name}": source.uniform(0.1, 1.0, shape).astype(np.float32)
        for name, shape in (q_proj | dict(case.tensors)).items()
    }
    save_tensors(folder / "adapter_model.safetensors", tensors)
    for name, value in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def loads(base: Path, folder: Path, case: Case) -> bool:
    """Return True if the worker's loader takes the adapter of a case."""
    ref = adapter_ref(adapter_of(base, folder / "adapter", case), rank=RANK)
    loader = AdapterLoader(base, folder / "cache", dtype=torch.float32, device=torch.device("cpu"))
    try:
        loader.load(ref)
    except AdapterRefused:
        return False
    return True


def test_a_plain_adapter_loads(base: Path, tmp_path: Path) -> None:
    assert loads(base, tmp_path, Case())


@pytest.mark.parametrize("trait", Trait)
def test_the_worker_serves_the_traits_that_it_states(base: Path, tmp_path: Path, trait: Trait) -> None:
    assert loads(base, tmp_path, CASES[trait]) is (trait in TRAITS)


def test_the_worker_serves_the_architectures_and_quantizations_that_it_states() -> None:
    expected = {name: SPARSE_TRAITS if name in SPARSE else TRAITS for name in FAMILIES}
    expected |= dict.fromkeys(LATENT, LATENT_TRAITS)
    assert WORKER.architectures == expected
    # GPTQ's files are read in 3 bits alone, of variants that a job has made.
    assert WORKER.quantizations == frozenset(quantization_config._IGNORED) - {"gptq"}
