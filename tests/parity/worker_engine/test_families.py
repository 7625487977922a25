"""Every family's logits and greedy tokens equal transformers' in fp32, on random checkpoints that it wrote.

Norms' gains and biases are drawn too: at one and nought a model that forgets them is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.parity import references
from tests.parity.worker_engine.greedy import check_greedy
from tests.worker_engine.conftest import EngineFactory
from tests.worker_engine.forward_pass import LENGTHS, SIZES, WINDOW, draw, load, logits
from tests.worker_engine.tiny_model import write_tokenizer

LLAMA3_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

Case = tuple[str | Callable[..., Any], str, Mapping[str, Any]]
"""The configuration's type or what makes one, the model's type, and changes of SIZES; types by name, so that
collecting the tests does not import them."""
LLAMA, MISTRAL = ("LlamaConfig", "LlamaForCausalLM"), ("MistralConfig", "MistralForCausalLM")
QWEN2, QWEN3 = ("Qwen2Config", "Qwen2ForCausalLM"), ("Qwen3Config", "Qwen3ForCausalLM")
GEMMA3 = ("Gemma3TextConfig", "Gemma3ForCausalLM")
CASES: Final[dict[str, Case]] = {
    "llama-tied": (*LLAMA, {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "llama-biases": (*LLAMA, {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        *LLAMA,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}, "head_dim": 14},
    ),
    "mistral-window": (*MISTRAL, {"head_dim": 32, "sliding_window": WINDOW}),
    "mistral-whole": (*MISTRAL, {"sliding_window": None, "num_key_value_heads": 6}),
    "qwen2-tied": (*QWEN2, {"tie_word_embeddings": True}),
    "qwen2-yarn-window": (
        *QWEN2,
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
            "rope_parameters": YARN,
        },
    ),
    "qwen3": (*QWEN3, {"head_dim": 32}),
    "qwen3-tied-bias-window": (
        *QWEN3,
        {
            "head_dim": 12,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": YARN | {"truncate": False, "attention_factor": 1.3, "beta_fast": 16.0},
        },
    ),
    "gemma3-tied": (
        *GEMMA3,
        {
            "head_dim": 32,
            "num_hidden_layers": 7,
            "tie_word_embeddings": True,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "gemma3-capped": (
        *GEMMA3,
        {
            "head_dim": 12,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 8,
            "attention_bias": True,
            "final_logit_softcapping": 6.0,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
}
VISION: Final[dict[str, Any]] = {
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "image_token_index": 253,
    "boi_token_index": 252,
    "eoi_token_index": 251,
}


def multimodal(attn_implementation: str, **sizes: Any) -> Any:
    text = sizes | {"head_dim": 16, "sliding_window": WINDOW, "tie_word_embeddings": True}
    options: dict[str, Any] = VISION | {"attn_implementation": attn_implementation}
    return references.Gemma3Config(text_config=text, **options)


CASES["gemma3-multimodal"] = (multimodal, "Gemma3ForConditionalGeneration", {})
SHARDED: Final = ("llama-biases", "qwen3", "gemma3-tied")


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folder and transformers' model of a case, made once."""

    @cache
    def make(name: str) -> tuple[Path, Any]:
        config, model_type, changes = CASES[name]
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(5)
        make_config = getattr(references, config) if isinstance(config, str) else config
        made = make_config(**(SIZES | dict(changes)), attn_implementation="eager")
        model = getattr(references, model_type)(made).eval()
        for key, value in model.named_parameters():
            if value.dim() == 1:
                centre = 1.0 if key.endswith("norm.weight") and "gemma3" not in name else 0.0
                value.data.normal_(centre, 0.4)
        model.save_pretrained(folder, max_shard_size="60KB" if name in SHARDED else "5GB")
        write_tokenizer(folder)
        assert (folder / "model.safetensors.index.json").exists() == (name in SHARDED)
        return folder, model

    return make


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, families: Any) -> None:
    """At every position, prefilled at once, in chunks that straddle pages and windows, and token by token."""
    folder, reference = families(name)
    prompts = draw(LENGTHS)
    with torch.inference_mode():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    for step in (128, 13, 1):
        for found, wanted in zip(logits(*load(folder), prompts, step), expected, strict=True):
            assert (found - wanted).abs().max() <= 1e-4, f"{step} tokens at a time"
    assert max(wanted.std() for wanted in expected) > 0.5, "flat logits prove nothing"


@pytest.mark.parametrize("name", CASES)
def test_bf16_loses_no_more_than_transformers(name: str, families: Any) -> None:
    """Token by token also in native loops, where there are any: root mean square error beside fp32."""
    folder, reference = families(name)
    prompts = draw(LENGTHS)
    half = deepcopy(reference).to(torch.bfloat16)
    with torch.inference_mode():
        exact = torch.cat([reference(torch.tensor([prompt])).logits[0] for prompt in prompts])
        theirs = torch.cat([half(torch.tensor([prompt])).logits[0].float() for prompt in prompts])
    for step in (13, 1):
        ours = torch.cat(logits(*load(folder, torch.bfloat16), prompts, step))
        assert (ours - exact).square().mean() <= 1.5 * (theirs - exact).square().mean(), f"{step} at a time"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly("runs each family in transformers and in the engine")
def test_greedy(name: str, families: Any, make_engine: EngineFactory) -> None:
    folder, reference = families(name)
    check_greedy(folder, reference, make_engine)
