"""Families with experts: fp32 logits and greedy tokens equal transformers', in both forms of checkpoints."""

from __future__ import annotations

import pytest
import torch

from tests.parity.worker_engine.greedy import check_greedy
from tests.parity.worker_engine.sparse_case import CASES, FORMS, Made, make_families
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly("runs each family in transformers and in the engine")
def test_greedy(name: str, families: Made, make_engine: EngineFactory) -> None:
    folder, reference = families(name)
    check_greedy(folder, reference, make_engine)
