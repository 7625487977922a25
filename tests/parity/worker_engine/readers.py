"""Hidden states and logits by transformers and PEFT, and adapters that change what readers see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import references
from tests.parity.worker_engine.test_adapter_forms import write_adapter

FORMS: dict[str, dict[str, Any]] = {
    "linear": {"target_modules": "all-linear"},
    "tops": {"target_modules": ["q_proj", "embed_tokens", "lm_head"], "modules_to_save": ["norm"]},
}


@pytest.fixture(scope="module")
def readers_adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by name of adapters that change the layers, the last norm and the head."""
    root = tmp_path_factory.mktemp("readers")
    return {
        name: write_adapter(tiny_model, root / name, options, seed)
        for seed, (name, options) in enumerate(FORMS.items())
    }


@dataclass(frozen=True)
class PeftForward:
    """One model: a checkpoint, and an adapter's folder or None."""

    model: Any

    @classmethod
    def load(cls, base: Path, folder: Path | None) -> PeftForward:
        model: Any = references.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
        if folder is not None:
            model = references.PeftModel.from_pretrained(model, str(folder))
        return cls(model.eval())

    @torch.inference_mode()
    def __call__(self, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states behind the last norm [tokens, hidden], and logits [tokens, vocab]."""
        output = self.model(torch.tensor([prompt]), output_hidden_states=True)
        return output.hidden_states[-1][0], output.logits[0]
