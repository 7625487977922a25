"""Any LoraConfig of PEFT: greedy fp32 output equals PEFT's, alone and in a batch with base rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.parity import references
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_engine.tiny_model import random_weights, tiny_config, write_checkpoint
from worker_engine import model_runner
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed"),
    # PEFT takes B's bias for a half-written matrix.
    pytest.mark.filterwarnings("ignore:Adapter 'default'.*invalid shape"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:You have requested `ensure_weight_tying`:UserWarning"),
    pytest.mark.filterwarnings("ignore:ensure_weight_tying=True but the model:UserWarning"),
]
COUNT = 12
ATTENTION = ["q_proj", "v_proj"]

FORMS: dict[str, dict[str, Any]] = {
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "dora-rslora": {"target_modules": ["o_proj", "up_proj"], "use_dora": True, "use_rslora": True},
    "expression": {"target_modules": r"model\.layers\.[02]\.(self_attn|mlp)\.(q|down)_proj"},
    "patterns": {
        "target_modules": "all-linear",
        "rank_pattern": {r".*\.[01]\.self_attn\.[qk]_proj": 7, "layers.2.mlp.up_proj": 2},
        "alpha_pattern": {r"layers\.\d+\.mlp\.(up|gate)_proj": 30, "^model.layers.0.self_attn.o_proj": 1},
    },
    "some-layers": {"target_modules": ["q_proj", "gate_proj"], "layers_to_transform": [0, 2]},
    "one-layer": {"target_modules": ATTENTION, "layers_to_transform": 1, "layers_pattern": "layers"},
    "excluded": {"target_modules": "all-linear", "exclude_modules": r".*\.0\..*"},
    "bias-all": {"target_modules": ["q_proj"], "bias": "all"},
    "bias-lora-only": {"target_modules": ["k_proj", "o_proj"], "bias": "lora_only"},
    "bias-of-b": {"target_modules": ["v_proj", "down_proj"], "lora_bias": True},
    "dora-bias": {"target_modules": ["q_proj", "o_proj"], "use_dora": True, "bias": "lora_only"},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "dora-embedding": {"target_modules": ["embed_tokens"], "use_dora": True},
    "head": {"target_modules": ["lm_head", "v_proj"]},
    "dora-head": {"target_modules": ["lm_head"], "use_dora": True},
    "saved-embedding": {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]},
    "saved-head": {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]},
    "saved-norms": {"target_modules": ATTENTION, "modules_to_save": ["norm", "input_layernorm"]},
    "token-rows": {"target_modules": ATTENTION, "trainable_token_indices": [3, 250, 7, 101]},
    "ties-embedding": {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    "ties-head": {"target_modules": ["lm_head", "q_proj"], "ensure_weight_tying": True},
    "ties-saved-embedding": {
        "target_modules": ATTENTION,
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "ties-saved-head": {
        "target_modules": ATTENTION,
        "modules_to_save": ["lm_head"],
        "ensure_weight_tying": True,
    },
    "ties-token-rows": {
        "target_modules": ATTENTION,
        "trainable_token_indices": [3, 250],
        "ensure_weight_tying": True,
    },
    "velora": {"target_modules": ATTENTION, "velora_config": {}},
    "saved-and-targeted": {
        "target_modules": [*ATTENTION, "embed_tokens"],
        "modules_to_save": ["embed_tokens"],
    },
    "token-rows-of-head": {
        "target_modules": ATTENTION,
        "trainable_token_indices": {"embed_tokens": list(range(40)), "lm_head": [5, 6, 200]},
    },
}


def write_model(folder: Path, **changes: Any) -> Path:
    """A checkpoint with biases, drawn too."""
    config = tiny_config(attention_bias=True, **changes)
    weights = random_weights(config, seed=3)
    source = np.random.default_rng(4)
    for name, value in weights.items():
        if name.endswith("bias"):
            weights[name] = source.normal(0.0, 0.3, value.shape).astype(np.float32)
    return write_checkpoint(folder, config, weights)


def shake(model: torch.nn.Module, chosen: Callable[[str], bool], scale: float) -> None:
    with torch.no_grad():
        for name, value in model.named_parameters():
            if chosen(name):
                value.add_(scale * torch.randn_like(value))


@pytest.fixture(scope="module", params=["untied", "tied"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp(request.param) / "m", tie_word_embeddings=request.param == "tied"
    )


def write_adapter(base: Path, folder: Path, options: dict[str, Any], seed: int = 1) -> Path:
    """Write an adapter as after training: B, magnitudes, biases and whole modules differ from their start."""
    torch.manual_seed(seed)
    model: Any = references.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    values: dict[str, Any] = {"r": 4, "lora_alpha": 8, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    adapted = references.get_peft_model(model, references.LoraConfig(**(values | options)))
    moved = ["magnitude", "modules_to_save.default", "trainable_tokens_delta", "lora_B.default.bias"]
    if "bias" in options:
        moved += ["_proj.base_layer.bias", "_proj.bias"]
    shake(adapted, lambda name: any(part in name for part in moved), 0.2)
    adapted.save_pretrained(str(folder))
    return folder


def peft_greedy(base: Path, folder: Path | None, prompt: list[int]) -> list[int]:
    model: Any = references.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    if folder is not None:
        model = references.PeftModel.from_pretrained(model, str(folder))
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    output = model.eval().generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=COUNT,
        do_sample=False,
        pad_token_id=0,
    )
    completion: list[int] = output[0, len(prompt) :].tolist()
    return completion


def load(base: Path, folder: Path, cache: Path) -> Adapter:
    loader = AdapterLoader(base, cache, dtype=torch.float32, device=torch.device("cpu"))
    return loader.load(adapter_ref(folder))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.costly("runs each form in PEFT and in the engine")
def test_as_in_peft(
    base: Path, form: str, make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form alone, then with base rows and another adapter's in the same batches, prefill in chunks; from
    matrices, as on the CPU, and from pages of the pool, as on a device with memory of its own."""
    draw = random.Random(7)
    prompts = [[draw.randrange(256) for _ in range(size)] for size in (19, 6, 11, 23)]
    folder = write_adapter(base, tmp_path / "a", FORMS[form])
    other = write_adapter(base, tmp_path / "b", {"target_modules": ATTENTION}, seed=2)
    expected = [peft_greedy(base, folder, prompts[0]), peft_greedy(base, None, prompts[1])]
    expected += [peft_greedy(base, other, prompts[2]), peft_greedy(base, folder, prompts[3])]
    assert peft_greedy(base, None, prompts[0]) != expected[0], "the adapter changes nothing"
    adapters = [load(base, path, tmp_path / "c") for path in (folder, other)]
    for paged in (False, True):
        monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device, paged=paged: paged)
        engine = make_engine(base, max_num_batched_tokens=64)
        assert (engine.scheduler.adapters.tier is not None) == paged
        engine.add_request(request("alone", prompts[0], COUNT), adapters[0])
        assert tokens(drain(engine)["alone"]) == expected[0]
        owners = [adapters[0], None, adapters[1], adapters[0]]
        for index, (prompt, adapter) in enumerate(zip(prompts, owners, strict=True)):
            engine.add_request(request(str(index), prompt, COUNT), adapter)
        mixed = drain(engine)
        assert [tokens(mixed[str(index)]) for index in range(4)] == expected
