"""Greedy fp32 output equals transformers + PEFT token for token: base and adapters, alone and mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.conftest import Reference
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import load, load_adapter, logits, prompts_for
from tests.worker_engine.tiny_adapter import make_adapter
from tests.worker_engine.tiny_model import random_weights, tiny_config, write_checkpoint, write_model
from worker_engine.text.tokenizer import ChatTokenizer

pytestmark = pytest.mark.costly("generates with transformers and PEFT")

COUNT = 48


def check(
    model: Path,
    adapters: dict[str, Path],
    prompts: dict[str | None, list[int]],
    make_engine: EngineFactory,
    cache: Path,
    count: int = COUNT,
) -> None:
    """Run each of `prompts` (by adapter name, None for the base) alone, then all in one batch."""
    reference = Reference.load(model, adapters)
    expected = {name: reference.greedy(prompt, count, name) for name, prompt in prompts.items()}
    loaded = {name: load_adapter(model, folder, cache) for name, folder in adapters.items()}
    engine = make_engine(model)
    for name, prompt in prompts.items():
        engine.add_request(request("alone", prompt, count), loaded[name] if name else None)
        assert tokens(drain(engine)["alone"]) == expected[name], f"{name} alone"
    for name, prompt in prompts.items():
        engine.add_request(request(str(name), prompt, count), loaded[name] if name else None)
    mixed = drain(engine)
    assert {str(name): tokens(mixed[str(name)]) for name in prompts} == {
        str(name): ids for name, ids in expected.items()
    }
    if adapters:
        base = reference.greedy(prompts[next(iter(adapters))], count)
        assert base != expected[next(iter(adapters))], "the adapter changes nothing: this proves nothing"


def test_tiny_base_and_adapters(
    tiny_model: Path, tiny_adapters: dict[str, Path], make_engine: EngineFactory, tmp_path: Path
) -> None:
    prompts = prompts_for([None, *tiny_adapters], 256)
    check(tiny_model, tiny_adapters, prompts, make_engine, tmp_path / "c")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param(
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            id="llama3-rope",
        ),
        pytest.param({"head_dim": 20, "num_key_value_heads": 6}, id="head-dim-and-no-groups"),
    ],
)
def test_other_shapes(changes: dict[str, Any], make_engine: EngineFactory, tmp_path: Path) -> None:
    write_model(tmp_path / "m", seed=11, **changes)
    adapter = make_adapter(
        tmp_path / "m", tmp_path / "a", seed=1, r=6, target_modules=["q_proj", "v_proj", "gate_proj"]
    )
    check(tmp_path / "m", {"a": adapter}, prompts_for([None, "a"], 256), make_engine, tmp_path / "c")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_and_sharded_files(dtype: str, make_engine: EngineFactory, tmp_path: Path) -> None:
    config = tiny_config()
    weights = random_weights(config, seed=5)
    write_checkpoint(tmp_path / "m", config, weights, dtype=dtype, shard_bytes=100_000)
    assert (tmp_path / "m" / "model.safetensors.index.json").exists()
    check(tmp_path / "m", {}, prompts_for([None], 256), make_engine, tmp_path / "c")


@pytest.mark.model
@pytest.mark.slow
def test_demo_model_and_adapters(
    demo_model: Path, demo_adapters: dict[str, Path], make_engine: EngineFactory, tmp_path: Path
) -> None:
    tokenizer = ChatTokenizer(demo_model)
    questions = ["How do I boil an egg?", "My invoice is wrong.", "Tell me about the sea.", "What is rust?"]
    prompts: dict[str | None, list[int]] = {}
    for index, name in enumerate([None, *demo_adapters]):
        message = {"role": "user", "content": questions[index % len(questions)]}
        prompts[name] = tokenizer.encode(tokenizer.render_chat([message]), add_special_tokens=False)
    check(demo_model, demo_adapters, prompts, make_engine, tmp_path / "c", count=20)


LOGIT_TEXTS = (
    "The tide comes in twice a day because",
    "def fib(n):\n    return n if n < 2 else",
    "Ünïcode, 漢字 and emoji 🎉 are tokens too. " * 3,
    "List three rivers of Europe and say where each of them ends. Then tell me why one of them is long.",
)


@pytest.mark.model
@pytest.mark.slow
def test_demo_model_logits_and_greedy_tokens(demo_model: Path, make_engine: EngineFactory) -> None:
    """Logits at every position within 1e-4 of the exact ones, 64 greedy tokens equal, in chunks and not.

    The exact ones are transformers' in float64: logits reach 31, and in float32 its own strayed up to 1.3e-4
    from them on four such prompts (ours up to 8.2e-5), so a comparison in float32 measures both errors.
    """
    tokenizer = ChatTokenizer(demo_model)
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in LOGIT_TEXTS]
    reference = Reference.load(demo_model, {})
    greedy = [reference.greedy(prompt, 64) for prompt in prompts[:2]]
    with torch.inference_mode():
        single = [reference.model(torch.tensor([prompt])).logits[0] for prompt in prompts]
        reference.model.double()
        exact = [reference.model(torch.tensor([prompt])).logits[0] for prompt in prompts]
    model, kv = load(demo_model)
    for step in (128, 13):
        found = logits(model, kv, prompts, step)
        for ours, theirs, wanted in zip(found, single, exact, strict=True):
            assert (ours - wanted).abs().max() <= 1e-4, f"{step} tokens at a time"
            assert (ours - theirs).abs().max() <= 2e-4
    for chunk in (0, 13):
        engine = make_engine(demo_model, max_num_seqs=4, max_num_batched_tokens=chunk)
        for index, prompt in enumerate(prompts[:2]):
            engine.add_request(request(str(index), prompt, 64), None)
        made = drain(engine)
        assert [tokens(made[str(index)]) for index in range(2)] == greedy
