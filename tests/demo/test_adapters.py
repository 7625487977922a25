"""The committed adapters are what demo.effects says, in the form that the product takes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from contracts.adapters.reference import ADAPTER_FILES, SLUG_PATTERN
from demo.credentials import TENANTS
from demo.effects import ADAPTERS, EFFECTS
from demo.model import ADAPTER_BASE


def test_the_set_is_varied_and_small() -> None:
    assert {path.name for path in ADAPTERS.iterdir()} == set(EFFECTS)
    assert {effect.rank for effect in EFFECTS.values()} >= {4, 8, 16, 64}
    assert len({effect.modules for effect in EFFECTS.values()}) >= 4
    assert sum(effect.rslora for effect in EFFECTS.values()) == 1
    assert sum(path.stat().st_size for path in ADAPTERS.rglob("*") if path.is_file()) <= 25_000_000
    assert sorted(name for tenant in TENANTS for name in tenant.adapters) == sorted(EFFECTS)


@pytest.mark.parametrize("name", EFFECTS)
def test_config_states_the_effect_and_no_path(name: str) -> None:
    assert SLUG_PATTERN.fullmatch(name)
    assert {path.name for path in (ADAPTERS / name).iterdir()} == set(ADAPTER_FILES)
    text = (ADAPTERS / name / "adapter_config.json").read_text()
    config, effect = json.loads(text), EFFECTS[name]
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == ADAPTER_BASE
    assert '"/' not in text, "a path of the machine that trained it"
    assert (config["r"], config["lora_alpha"]) == (effect.rank, effect.alpha)
    assert config["use_rslora"] is effect.rslora
    assert set(config["target_modules"]) == set(effect.modules)


@pytest.mark.parametrize("name", EFFECTS)
def test_tensors_are_bf16_of_the_stated_rank_and_not_zero(name: str) -> None:
    effect = EFFECTS[name]
    tensors = load_file(ADAPTERS / name / "adapter_model.safetensors")
    assert len(tensors) == 30 * 2 * len(effect.modules)
    for key, tensor in tensors.items():
        assert tensor.dtype == torch.bfloat16
        assert tensor.shape[0 if ".lora_A." in key else 1] == effect.rank
        assert tensor.float().abs().max() > 0, f"{key} is zero: it would prove nothing"
