"""Prompt log probabilities equal transformers': base and adapters, in chunks, with generations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.parity.worker_engine.readers import PeftForward, readers_adapters
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import load_adapter
from tests.worker_engine.readers.prompts import LENGTHS, draw
from tests.worker_engine.readers.test_prompt_logprobs import TOP, check, prompt_logprobs_of
from worker_engine.protocol import FinishReason
from worker_engine.readers.prompt_logprobs import BLOCK_ROWS

__all__ = ["readers_adapters"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.costly("generates with transformers and PEFT"),
]


@pytest.mark.parametrize(("budget", "overlap"), [(0, "off"), (8, "off"), (8, "on")])
def test_as_in_transformers_and_peft(
    budget: int,
    overlap: str,
    tiny_model: Path,
    readers_adapters: dict[str, Path],
    make_engine: EngineFactory,
    tmp_path: Path,
) -> None:
    """All in one batch, of requests that generate and that do not; tokens are those without them."""
    engine = make_engine(tiny_model, max_num_seqs=8, max_num_batched_tokens=budget, overlap=overlap)
    expected: dict[str, tuple[torch.Tensor, list[int]]] = {}
    for name, folder in {"base": None, **readers_adapters}.items():
        reference = PeftForward.load(tiny_model, folder)
        uses = None if folder is None else load_adapter(tiny_model, folder, tmp_path)
        for seed, length in enumerate((*LENGTHS, 150)):
            prompt = draw(length, seed)
            logits = reference(prompt)[1]
            for most in ("0", "6"):
                key = f"{name} {length} {most}"
                expected[key] = (logits, prompt)
                engine.add_request(request(key, prompt, int(most), prompt_logprobs=TOP), uses)
            engine.add_request(request(f"plain {name} {length}", prompt, 6), uses)
    found = drain(engine)
    for key, (logits, prompt) in expected.items():
        check(prompt_logprobs_of(found[key]), logits, prompt)
        name, size, most = key.split()
        plain = tokens(found[f"plain {name} {size}"])
        assert tokens(found[key]) == plain[: int(most)], key
        assert found[key][-1].finish_reason is FinishReason.LENGTH
    assert 2 * BLOCK_ROWS < 150
    assert engine.pool.num_used == 0
