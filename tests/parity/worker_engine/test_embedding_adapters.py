"""Adapters of task_type FEATURE_EXTRACTION embed as PEFT does over transformers' model without a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from contracts.adapters.pooling import Pooling
from tests.parity import references
from tests.worker_engine.conftest import EngineFactory, drain, request
from tests.worker_engine.forward_pass import load_adapter
from tests.worker_engine.readers.prompts import LENGTHS, draw
from tests.worker_engine.readers.test_pooling import embed, pooled, vector

FORMS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "dora": {
        "r": 8,
        "target_modules": ["o_proj", "down_proj"],
        "modules_to_save": ["norm"],
        "use_dora": True,
        "rank_pattern": {"layers.1.mlp.down_proj": 3},
    },
}


def embedding_model(base: Path, folder: Path | None, **options: Any) -> Any:
    """Return transformers' model without a head, with an adapter that PEFT first writes to `folder`."""
    model: Any = references.LlamaModel.from_pretrained(base, dtype=torch.float32)
    if folder is None:
        return model.eval()
    torch.manual_seed(len(folder.name))
    values = {"init_lora_weights": False, "task_type": "FEATURE_EXTRACTION", **options}
    references.get_peft_model(model, references.LoraConfig(**values)).save_pretrained(str(folder))
    plain: Any = references.LlamaModel.from_pretrained(base, dtype=torch.float32)
    return references.PeftModel.from_pretrained(plain, str(folder)).eval()


@torch.inference_mode()
def hidden_states(model: Any, prompt: list[int]) -> torch.Tensor:
    """Return the states behind the last norm [tokens, hidden]."""
    states: torch.Tensor = model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    return states


def test_as_peft_embeds_them_whatever_their_neighbours_are(
    tiny_model: Path, make_engine: EngineFactory, tmp_path: Path
) -> None:
    """All poolings of each prompt, of the base and both adapters: alone, and in one batch that generates."""
    engine = make_engine(tiny_model, max_num_seqs=8, max_num_batched_tokens=24)
    expected: dict[str, torch.Tensor] = {}
    alone: dict[str, torch.Tensor] = {}
    requests = []
    for name in (None, *FORMS):
        folder = None if name is None else tmp_path / name
        model = embedding_model(tiny_model, folder, **FORMS.get(name or "", {}))
        uses = None if folder is None else load_adapter(tiny_model, folder, tmp_path / "cache")
        assert uses is None or uses.embeds_only
        for seed, length in enumerate(LENGTHS):
            prompt = draw(length, seed)
            states = hidden_states(model, prompt)
            for pooling in Pooling:
                key = f"{name} {length} {pooling}"
                expected[key] = pooled(states, pooling)
                requests.append((embed(key, prompt, pooling), uses))
    for asked, uses in requests:
        engine.add_request(asked, uses)
        alone |= {key: vector(deltas) for key, deltas in drain(engine).items()}
    for asked, uses in requests:
        engine.add_request(asked, uses)
    engine.add_request(request("generates", draw(30, 9), 12), None)
    together = drain(engine)
    for key, wanted in expected.items():
        assert (vector(together[key]) - wanted).abs().max() <= 1e-5, key
        assert (vector(together[key]) - alone[key]).abs().max() <= 1e-6, key
    for name in FORMS:
        assert (expected[f"{name} 50 mean"] - expected["None 50 mean"]).abs().max() > 1e-2
