"""The text model of a vision-language checkpoint takes adapters with the names of any of its classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from contracts.adapters.module_names import LAYOUTS, PLAIN, WITHOUT_HEAD, Layout
from tests.worker_engine.tiny_adapter import adapter_ref, make_adapter
from tests.worker_engine.tiny_model import family_config, random_weights, save_tensors
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.models import load_config, load_model

TEXT: dict[str, Any] = family_config(
    "gemma3_text",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=128,
)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model alone."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "config.json").write_text(json.dumps(TEXT))
    save_tensors(folder / "model.safetensors", random_weights(TEXT, seed=3))
    return folder


@pytest.fixture(scope="module")
def whole_model(text_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in a checkpoint that has a vision tower too."""
    folder = tmp_path_factory.mktemp("whole")
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": TEXT,
        "vision_config": {},
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(text_model / "model.safetensors")
    tensors = {LAYOUTS[0].path_of(name): value for name, value in weights.items()}
    tensors["vision_tower.post_layernorm.weight"] = np.ones(4, np.float32)
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def loaded(model: Path, adapter: Path, cache: Path) -> Adapter:
    loader = AdapterLoader(model, cache, dtype=torch.float32, device=torch.device("cpu"))
    return loader.load(adapter_ref(adapter))


@pytest.mark.parametrize(
    "layout",
    [PLAIN, *LAYOUTS, WITHOUT_HEAD],
    ids=["plain", "older", "newer", "vision-without-head", "without-head"],
)
def test_an_adapter_of_each_layout_has_the_same_weights(
    layout: Layout, text_model: Path, whole_model: Path, tmp_path: Path
) -> None:
    plain = make_adapter(
        text_model,
        tmp_path / "plain",
        seed=1,
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "down_proj"],
        alpha_pattern={"model.layers.1.mlp.down_proj": 20},
    )
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    config = json.loads((plain / "adapter_config.json").read_text())
    config["alpha_pattern"] = {layout.path_of("model.layers.1.mlp.down_proj"): 20}
    (renamed / "adapter_config.json").write_text(json.dumps(config))
    prefix = "base_model.model."
    tensors = {
        prefix + layout.path_of(name.removeprefix(prefix)): value
        for name, value in load_file(plain / "adapter_model.safetensors").items()
    }
    save_tensors(renamed / "adapter_model.safetensors", tensors)

    expected = loaded(text_model, plain, tmp_path / "cache-text")
    found = loaded(whole_model, renamed, tmp_path / "cache-whole")
    assert [set(layer) for layer in found.layers] == [{"q_proj", "down_proj"}] * 2
    for own, other in zip(expected.layers, found.layers, strict=True):
        for module, pair in own.items():
            assert torch.equal(pair.a, other[module].a), module
            assert torch.equal(pair.b, other[module].b), module
    config = load_config(whole_model)
    load_model(whole_model, config, max_model_len=64, dtype=torch.float32, device=torch.device("cpu"))
