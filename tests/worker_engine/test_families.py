"""Families in bf16 with native loops, on random checkpoints with random norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from kernels import native
from tests.worker_engine.forward_pass import SIZES, WINDOW, draw, load, logits
from tests.worker_engine.tiny_model import family_config, random_weights, randomize_vectors, write_checkpoint

CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "mistral-window": ("mistral", {"head_dim": 32, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma3-tied": (
        "gemma3_text",
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
}


def written(folder: Path, name: str) -> Path:
    """Write the checkpoint of one of CASES."""
    family, changes = CASES[name]
    config = family_config(family, **(SIZES | changes))
    weights = random_weights(config, seed=5)
    randomize_vectors(weights, seed=6, scale=0.4, gain=0.0 if family == "gemma3_text" else 1.0, bias=0.0)
    return write_checkpoint(folder, config, weights)


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
@pytest.mark.parametrize("name", CASES)
def test_native_bf16_logits_do_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    """Bit for bit, so that a seed's draw does not depend on the other rows of the batch."""
    model, kv = load(written(tmp_path, name), torch.bfloat16)
    prompts = draw((75, 22, 40))
    for step in (1, 128):
        together = logits(model, kv, prompts, step)
        for prompt, beside in zip(prompts, together, strict=True):
            assert torch.equal(logits(model, kv, [prompt], step)[0], beside)
