"""The demo model in bf16, as it is served: token by token what it says without speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import native
from tests.worker_engine.conftest import drain, request, tokens
from tests.worker_engine.speculation.conftest import accepted, eager
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.models import load_config
from worker_engine.text.tokenizer import ChatTokenizer

LIST = "\n".join(
    f"{number}. {name} lives in {city} and works as a {job}."
    for number, (name, city, job) in enumerate(
        [("Anna", "Berlin", "nurse"), ("Ben", "Paris", "teacher"), ("Carla", "Madrid", "lawyer")], 1
    )
)
CODE = """def average(values):
    total = sum(values)
    return total / len(values)


def largest(values):
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best
"""
TEXTS = {
    "edit": f"# stats.py\n{CODE}\n\n# stats_v2.py: the same, where largest is called biggest\n{CODE[:40]}",
    "extract": f'{LIST}\n\nAs JSON:\n[\n{{"name": "Anna", "city": "Berlin", "job": "nurse"}},\n',
    "story": "Once upon a time there was a lighthouse keeper who found a strange shell on the beach.",
    "question": "Why is the sky blue? The sky is blue because",
}
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7, "logprobs": 2}]


def engine_of(model: Path, dtype: torch.dtype, cache: Path, **changes: Any) -> Engine:
    config = EngineConfig(model, "base", memory_gib=0.2, adapter_cache_dir=cache, **changes)
    return Engine(config, load_config(model), ChatTokenizer(model), dtype=dtype, device=torch.device("cpu"))


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_model_says_the_same(
    demo_model: Path, demo_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """Base and adapters in one batch, greedy rows and drawn ones; some texts repeat, so that some rows
    verify guesses beside others that have none."""
    dtype = torch.bfloat16 if native.LIBRARY is not None else torch.float32
    tokenizer = ChatTokenizer(demo_model)
    loader = AdapterLoader(demo_model, tmp_path, max_bytes=1 << 30, dtype=dtype, device=torch.device("cpu"))
    adapters = [None, *(loader.load(adapter_ref(folder)) for folder in list(demo_adapters.values())[:2])]
    heard = []
    plain_engine = engine_of(demo_model, dtype, tmp_path)
    speculating = eager(engine_of(demo_model, dtype, tmp_path, speculation="ngram"))
    for engine in (plain_engine, speculating):
        for name, text in TEXTS.items():
            prompt = tokenizer.encode(text, add_special_tokens=False)
            for place, adapter in enumerate(adapters):
                for sampling in SAMPLINGS[: 2 if adapter is None else 1]:
                    asked = request(f"{name} {place} {len(sampling)}", prompt, 60, **sampling)
                    engine.add_request(asked, adapter)
        heard.append(drain(engine))
        assert engine.pool.num_used == 0
    plain, speculated = heard
    assert plain.keys() == speculated.keys()
    for name, deltas in plain.items():
        assert tokens(speculated[name]) == tokens(deltas), name
        assert "".join(d.text for d in speculated[name]) == "".join(d.text for d in deltas)
        # A guess's row is computed as the decode row that it stands for: the same bits, so the same figures.
        if dtype is torch.bfloat16:
            assert [d.logprobs for d in speculated[name]] == [d.logprobs for d in deltas]
    proposed, kept = accepted(speculating)
    assert kept > 100
    assert proposed > kept


@pytest.mark.model
@pytest.mark.slow
def test_a_seed_gives_the_same_tokens_in_any_batch(demo_model: Path, tmp_path: Path) -> None:
    """Alone and among others, guessed and not: which rows a step has is no matter."""
    if native.LIBRARY is None:
        pytest.skip("bits do not depend on the batch in the native loops alone")
    tokenizer = ChatTokenizer(demo_model)
    engine = eager(engine_of(demo_model, torch.bfloat16, tmp_path, speculation="ngram"))
    prompt = tokenizer.encode(TEXTS["extract"], add_special_tokens=False)
    told = []
    for neighbours in (0, 4):
        for index in range(neighbours):
            other = tokenizer.encode(list(TEXTS.values())[index], add_special_tokens=False)
            engine.add_request(request(f"n{index}", other, 50, temperature=1.0, seed=index), None)
        engine.add_request(request("seeded", prompt, 60, temperature=0.8, seed=3), None)
        told.append(tokens(drain(engine)["seeded"]))
    assert told[0] == told[1]
