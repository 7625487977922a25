"""Embeddings equal transformers' pooled hidden states: base and adapters, in chunks, with generations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contracts.adapters.pooling import Pooling
from tests.parity.worker_engine.readers import PeftForward, readers_adapters
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import load_adapter
from tests.worker_engine.readers.prompts import LENGTHS, draw
from tests.worker_engine.readers.test_pooling import embed, pooled, vector

__all__ = ["readers_adapters"]
pytestmark = pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")


@pytest.mark.parametrize(("budget", "overlap"), [(0, "off"), (8, "off"), (8, "on")])
def test_as_transformers_and_peft_pool_them(
    budget: int,
    overlap: str,
    tiny_model: Path,
    readers_adapters: dict[str, Path],
    make_engine: EngineFactory,
    tmp_path: Path,
) -> None:
    """Each pooling of each adapter's prompts in a batch with requests that generate; 8 or 128 rows a step."""
    engine = make_engine(tiny_model, max_num_seqs=8, max_num_batched_tokens=budget, overlap=overlap)
    expected: dict[str, torch.Tensor] = {}
    for name, folder in {"base": None, **readers_adapters}.items():
        reference = PeftForward.load(tiny_model, folder)
        uses = None if folder is None else load_adapter(tiny_model, folder, tmp_path)
        for seed, length in enumerate(LENGTHS):
            prompt = draw(length, seed)
            for pooling in Pooling:
                key = f"{name} {length} {pooling}"
                expected[key] = pooled(reference(prompt)[0], pooling)
                engine.add_request(embed(key, prompt, pooling), uses)
        engine.add_request(request(f"generates {name}", draw(30, 9), 12), uses)
    found = drain(engine)
    for key, wanted in expected.items():
        assert (vector(found[key]) - wanted).abs().max() <= 1e-5, key
    assert not torch.allclose(expected["base 50 mean"], expected["tops 50 mean"], atol=1e-2)
    for name, folder in {"base": None, **readers_adapters}.items():
        uses = None if folder is None else load_adapter(tiny_model, folder, tmp_path)
        engine.add_request(request("alone", draw(30, 9), 12), uses)
        assert tokens(found[f"generates {name}"]) == tokens(drain(engine)["alone"])
    assert engine.pool.num_used == 0
