"""Adapters on latent attention equal PEFT's, with keys and values expanded and in the absorbed form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.parity.worker_engine.sparse_adapters import write_by_peft
from tests.parity.worker_engine.sparse_case import Made, make_families
from tests.worker_engine.forward_pass import draw, load, load_adapter, logits
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.models import load_config

PROMPTS: Final = draw((31, 9, 40, 14))
PROJECTIONS: Final = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
FORMS: Final[Mapping[str, dict[str, Any]]] = {
    "attention": {
        "target_modules": PROJECTIONS,
        "use_rslora": True,
        "rank_pattern": {"kv_b_proj": 7},
        "alpha_pattern": {"q_a_proj": 3},
    },
    "kv_b-only": {"target_modules": ["kv_b_proj"]},
    "dora": {"target_modules": ["kv_a_proj_with_mqa", "kv_b_proj"], "use_dora": True},
    "lora-bias": {"target_modules": ["kv_b_proj"], "lora_bias": True},
    "norms": {"target_modules": ["q_b_proj"], "modules_to_save": ["kv_a_layernorm", "q_a_layernorm"]},
    "stacked": {
        "target_modules": ["kv_b_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "gate.weight"],
        "rank_pattern": {"experts.gate_up_proj": 2},
    },
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*target_parameters.*"),
    pytest.mark.filterwarnings("ignore:.*lora_bias.*merging LoRA weights"),
    pytest.mark.filterwarnings("ignore:.*LoRA tensor.*invalid shape.*lora_B.bias"),
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match"),
]


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_families(tmp_path_factory)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_as_in_peft(name: str, form: str, families: Made, tmp_path: Path) -> None:
    """At every position: prefilled at once, in chunks of both forms, and token by token; beside base rows."""
    base, model = families(name)
    theirs = write_by_peft(model, tmp_path / "a", **FORMS[form])
    owner = load_adapter(base, tmp_path / "a", tmp_path / "c")
    held = AdapterBatch(load_config(base), dtype=torch.float32)
    with torch.inference_mode():
        wanted = [theirs(torch.tensor([prompt])).logits[0] for prompt in PROMPTS[:3]]
        without = model(torch.tensor([PROMPTS[3]])).logits[0]
        plain = model(torch.tensor([PROMPTS[0]])).logits[0]
    assert (wanted[0] - plain).abs().max() > 0.1, "the adapter changes nothing"
    for step in (64, 11, 1):
        ours = logits(*load(base), PROMPTS, step, held, [owner, owner, owner, None])
        for found, expected in zip(ours, [*wanted, without], strict=True):
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max(), f"{step} tokens at a time"
