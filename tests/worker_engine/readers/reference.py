"""transformers and PEFT as they compute hidden states and logits, one prompt at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import LlamaForCausalLM

from tests.worker_engine.conftest import adapter_ref
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader

LENGTHS = (50, 1, 16, 33, 7)


def draw(length: int, seed: int) -> list[int]:
    stream = random.Random(seed)
    return [stream.randrange(256) for _ in range(length)]


@dataclass(frozen=True)
class Forward:
    """One model: a checkpoint, and an adapter's folder or None."""

    model: Any

    @classmethod
    def load(cls, base: Path, folder: Path | None) -> Forward:
        model: Any = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
        return cls((model if folder is None else PeftModel.from_pretrained(model, str(folder))).eval())

    @torch.inference_mode()
    def __call__(self, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states behind the last norm [tokens, hidden], and logits [tokens, vocab]."""
        output = self.model(torch.tensor([prompt]), output_hidden_states=True)
        return output.hidden_states[-1][0], output.logits[0]


def load(base: Path, folder: Path, cache: Path) -> Adapter:
    loader = AdapterLoader(base, cache, dtype=torch.float32, device=torch.device("cpu"))
    return loader.load(adapter_ref(folder))
