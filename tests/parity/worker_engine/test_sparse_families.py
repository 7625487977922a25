"""Families with experts: fp32 logits and greedy tokens equal transformers', in both forms of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.parity.worker_engine.greedy import check_greedy
from tests.parity.worker_engine.sparse_case import CASES, FORMS, Made, make_families, multimodal
from tests.worker_engine.conftest import EngineFactory
from tests.worker_engine.forward_pass import LENGTHS, draw, load, logits


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_families(tmp_path_factory)


@pytest.mark.parametrize("name", FORMS)
def test_logits(name: str, families: Made) -> None:
    """At every position, prefilled at once, in chunks that straddle pages and windows, and token by token."""
    folder, reference = families(name)
    prompts = draw(LENGTHS)
    with torch.inference_mode():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    largest = max(float(wanted.abs().max()) for wanted in expected)
    for step in (128, 13, 1):
        for found, wanted in zip(logits(*load(folder), prompts, step), expected, strict=True):
            assert (found - wanted).abs().max() <= 1e-4 * largest, f"{step} tokens at a time"
    assert max(wanted.std() for wanted in expected) > 0.5, "flat logits prove nothing"


@pytest.mark.parametrize("name", ["deepseek-v3", "llama4"])
def test_bf16_logits_are_near(name: str, families: Made) -> None:
    """The median, since rounding sends a few rows to other experts."""
    folder, _ = families(name)
    prompts = draw((48, 9))
    wanted = torch.cat(logits(*load(folder), prompts, 64))
    for step in (64, 1):
        near = torch.cat(logits(*load(folder, torch.bfloat16), prompts, step))
        assert (near - wanted).abs().median() <= 0.05 * wanted.std(), f"{step} tokens at a time"


def test_the_text_model_of_a_multimodal_checkpoint(families: Made, tmp_path: Path) -> None:
    """Llama 4's tensors behind `language_model.`, beside those of a vision tower."""
    folder, reference = families("llama4")
    whole = multimodal(folder, tmp_path / "m")
    prompt = draw((40,))[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]
    found = logits(*load(whole), [prompt], 64)[0]
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly("runs each family in transformers and in the engine")
def test_greedy(name: str, families: Made, make_engine: EngineFactory) -> None:
    folder, reference = families(name)
    check_greedy(folder, reference, make_engine)
