"""transformers and PEFT as references: the only tests that import them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import references
from tests.worker_engine.conftest import demo_adapters, make_engine

__all__ = ["demo_adapters", "make_engine"]
HERE = f"{Path(__file__).parent}/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PEFT calls an attribute that transformers deprecates."""
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"))


@pytest.fixture(scope="session", autouse=True)
def _references_are_loaded() -> None:
    """Import the references here, so that no test is charged for it."""
    references.load()


def write_peft_adapter(model: Path, folder: Path, *, seed: int, **options: Any) -> Path:
    """Have PEFT write a random adapter for `model` with a non-zero B; return `folder`."""
    torch.manual_seed(seed)
    base = references.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    values: dict[str, Any] = {"init_lora_weights": False, "task_type": "CAUSAL_LM"}
    references.get_peft_model(base, references.LoraConfig(**(values | options))).save_pretrained(str(folder))
    return folder


@dataclass(frozen=True)
class Reference:
    """transformers + PEFT on one checkpoint: greedy tokens, one sequence at a time."""

    model: Any
    adapters: tuple[str, ...]

    @classmethod
    def load(cls, model: Path, adapters: Mapping[str, Path]) -> Reference:
        loaded: Any = references.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
        for name, folder in adapters.items():
            if isinstance(loaded, references.PeftModel):
                loaded.load_adapter(folder, adapter_name=name)
            else:
                loaded = references.PeftModel.from_pretrained(loaded, folder, adapter_name=name)
        return cls(loaded.eval(), tuple(adapters))

    def greedy(self, prompt: Sequence[int], count: int, adapter: str | None = None) -> list[int]:
        """The next `count` tokens, past any end-of-sequence token."""
        ids = torch.tensor([list(prompt)])
        self.model.generation_config.eos_token_id = None
        options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        adapted = isinstance(self.model, references.PeftModel)
        if adapted and adapter is not None:
            self.model.set_adapter(adapter)
        without = self.model.disable_adapter() if adapted and adapter is None else nullcontext()
        with without:
            output = self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        completion: list[int] = output[0, len(prompt) :].tolist()
        return completion
