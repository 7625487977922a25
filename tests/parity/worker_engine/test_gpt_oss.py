"""GPT-OSS: fp32 logits, greedy tokens and adapters equal transformers' and PEFT's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.parity.worker_engine.gpt_oss_case import CASES, MXFP4, WRITERS, Made, make_gpt_oss
from tests.parity.worker_engine.greedy import check_greedy
from tests.parity.worker_engine.sparse_adapters import write_by_peft
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import LENGTHS, draw, load, load_adapter, logits
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.models import load_config

PROMPTS: Final = draw((51, 9, 22, 34))
"""Two of them outgrow the window."""
NAMES: Final = [*CASES, f"gpt-oss-square{MXFP4}"]
FORMS: Final[Mapping[str, dict[str, Any]]] = {
    "all": {
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "router.weight"],
        "use_rslora": True,
        "rank_pattern": {"experts.gate_up_proj": 2},
        "alpha_pattern": {"experts.down_proj": 5},
    },
    "gate-up-only": {"target_modules": [], "target_parameters": ["experts.gate_up_proj"]},
    "down-only": {"target_modules": [], "target_parameters": ["experts.down_proj"]},
    "router-only": {"target_modules": [], "target_parameters": ["router.weight"]},
    "attention-only": {"target_modules": ["q_proj", "o_proj"], "bias": "lora_only"},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*target_parameters.*"),
    pytest.mark.filterwarnings("ignore:.*target_modules.*"),
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match"),
]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_gpt_oss(tmp_path_factory)


def expected_of(model: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([prompt])).logits[0]
        return found


def demand_close(found: torch.Tensor, wanted: torch.Tensor, text: str) -> None:
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max(), text


@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str, made: Made) -> None:
    """At every position, prefilled at once, in chunks that straddle pages and windows, and token by token."""
    folder, reference = made(name)
    prompts = draw(LENGTHS)
    expected = [expected_of(reference, prompt) for prompt in prompts]
    for step in (128, 13, 1):
        for found, wanted in zip(logits(*load(folder), prompts, step), expected, strict=True):
            demand_close(found, wanted, f"{step} tokens at a time")
    assert max(wanted.std() for wanted in expected) > 0.5, "flat logits prove nothing"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly("generates 64 tokens in transformers and in the engine")
def test_greedy(name: str, made: Made, make_engine: EngineFactory) -> None:
    folder, reference = made(name)
    check_greedy(folder, reference, make_engine)


def demand_served(base: Path, adapter: Adapter, prompt: list[int], wanted: torch.Tensor) -> None:
    """Compare logits of the adapter's rows, prefilled at once and token by token, beside a base row."""
    held = AdapterBatch(load_config(base), dtype=torch.float32)
    for step in (64, 1):
        beside = logits(*load(base), [prompt, PROMPTS[1]], step, held, [adapter, None])
        demand_close(beside[0], wanted, f"{step} tokens at a time")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_as_in_peft(name: str, form: str, made: Made, tmp_path: Path) -> None:
    base, model = made(name)
    theirs = write_by_peft(model, tmp_path / "a", **FORMS[form])
    wanted = expected_of(theirs, PROMPTS[0])
    assert (wanted - expected_of(model, PROMPTS[0])).abs().max() > 0.1, "the adapter changes nothing"
    demand_served(base, load_adapter(base, tmp_path / "a", tmp_path / "c"), PROMPTS[0], wanted)


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_formulas(name: str, layout: str, made: Made, tmp_path: Path) -> None:
    base, model = made(name)
    wanted = expected_of(WRITERS[layout](model, tmp_path / "a").reference(), PROMPTS[0])
    assert (wanted - expected_of(model, PROMPTS[0])).abs().max() > 0.1, "the adapter changes nothing"
    demand_served(base, load_adapter(base, tmp_path / "a", tmp_path / "c"), PROMPTS[0], wanted)


@pytest.mark.costly("generates 64 tokens of four sequences in transformers and in the engine")
def test_three_adapters_and_base_rows_in_one_batch(
    made: Made, make_engine: EngineFactory, tmp_path: Path
) -> None:
    """Logits at every position, at once and in chunks, and 64 greedy tokens of each sequence."""
    base, model = made("gpt-oss")
    written = [WRITERS[name](model, tmp_path / name) for name in ("stacks", "singles", "lists")]
    models = [*(one.reference() for one in written), model]
    folders = [tmp_path / name for name in ("stacks", "singles", "lists")]
    owners = [*(load_adapter(base, folder, tmp_path / "c") for folder in folders), None]
    held = AdapterBatch(load_config(base), dtype=torch.float32)
    for step in (64, 7, 1):
        found = logits(*load(base), PROMPTS, step, held, owners)
        for index, (ours, theirs) in enumerate(zip(found, models, strict=True)):
            demand_close(ours, expected_of(theirs, PROMPTS[index]), f"sequence {index}, {step} at a time")
    engine = make_engine(base, max_num_seqs=4, max_num_batched_tokens=16)
    for index, (prompt, owner) in enumerate(zip(PROMPTS, owners, strict=True)):
        engine.add_request(request(str(index), prompt, 64), owner)
    answers = drain(engine)
    for index, (each, prompt) in enumerate(zip(models, PROMPTS, strict=True)):
        each.generation_config.eos_token_id = None
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 64, "do_sample": False}
        assert tokens(answers[str(index)]) == each.generate(ids, **options)[0, len(prompt) :].tolist()
