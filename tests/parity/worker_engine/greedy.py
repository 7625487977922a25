"""Compares greedy tokens of the engine with transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import draw


def check_greedy(folder: Path, reference: Any, make_engine: EngineFactory) -> None:
    """Compare 64 tokens of several sequences in one batch, their prompts prefilled in chunks and not."""
    reference.generation_config.eos_token_id = None
    prompts = draw((40, 3, 17))
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False
        )
        expected.append(made[0, len(prompt) :].tolist())
    for chunk in (0, 9):
        engine = make_engine(folder, max_num_seqs=4, max_num_batched_tokens=chunk)
        for index, prompt in enumerate(prompts):
            engine.add_request(request(str(index), prompt, 64), None)
        found = drain(engine)
        assert [tokens(found[str(index)]) for index in range(len(prompts))] == expected
