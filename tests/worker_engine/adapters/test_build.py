"""The builder gives each projection of an expert one pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.tensors import Part
from tests.worker_engine.tiny_sparse import EXPERTS, HIDDEN, HOLDER, INTER, write_sparse
from worker_engine.adapters.base_weights import BaseWeights
from worker_engine.adapters.build import AdapterBuilder

STACK, SINGLE = f"{HOLDER}.experts.down_proj", f"{HOLDER}.experts.0.down_proj"


@pytest.mark.parametrize("paths", [(STACK, SINGLE), (SINGLE, STACK)])
def test_no_pair_replaces_another(paths: tuple[str, str], tmp_path: Path) -> None:
    tensors = {
        f"{STACK}.A": torch.ones(EXPERTS, INTER),
        f"{STACK}.B": torch.ones(HIDDEN, EXPERTS),
        f"{SINGLE}.A": torch.ones(1, INTER),
        f"{SINGLE}.B": torch.ones(HIDDEN, 1),
    }
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["down_proj"]}
    builder = AdapterBuilder(
        LoraConfig.from_bytes(json.dumps(config).encode()),
        {path: {Part.A: f"{path}.A", Part.B: f"{path}.B"} for path in paths},
        tensors,
        BaseWeights(write_sparse(tmp_path), torch.float32),
        torch.float32,
    )
    with pytest.raises(AdapterConfigError, match=r"has a pair on experts\.0\.down_proj already"):
        builder.build("0" * 64)
