"""Adapters on experts, routers and shared experts equal PEFT's, and the formulas where PEFT drops a part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.parity.worker_engine.sparse_adapters import WRITERS, write_by_peft
from tests.parity.worker_engine.sparse_case import CASES, SINGLE, STACKED, Made, make_families
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import draw, load, load_adapter, logits
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.models import load_config

PROMPTS: Final = draw((31, 9, 22, 14))
ATTENTION: Final = ["q_proj", "v_proj"]
BOTH: Final = ["experts.gate_up_proj", "experts.down_proj"]
FORMS: Final[Mapping[str, dict[str, Any]]] = {
    "stacked": {
        "target_modules": ATTENTION,
        "target_parameters": [*BOTH, "gate.weight"],
        "use_rslora": True,
        "rank_pattern": {"experts.gate_up_proj": 2},
        "alpha_pattern": {"experts.down_proj": 5},
    },
    "gate-up-only": {"target_modules": [], "target_parameters": BOTH[:1]},
    "down-only": {"target_modules": [], "target_parameters": BOTH[1:]},
    "router-only": {"target_modules": [], "target_parameters": ["gate.weight"]},
    "one-layer": {"target_modules": ["o_proj"], "target_parameters": ["1.mlp.experts.down_proj"]},
    "experts": {
        "target_modules": ATTENTION,
        "target_parameters": BOTH,
        "rank_pattern": {"experts.down_proj": 2},
    },
    "by-modules": {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*target_parameters.*"),
    pytest.mark.filterwarnings("ignore:.*target_modules.*"),
    # PEFT looks for them among modules only, and applies them to parameters as well.
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match"),
]


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_families(tmp_path_factory)


def expected_of(model: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        made: torch.Tensor = model(torch.tensor([prompt])).logits[0]
        return made


def demand_close(found: torch.Tensor, wanted: torch.Tensor, text: str) -> None:
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max(), text


def demand_served(base: Path, adapter: Adapter, prompt: list[int], wanted: torch.Tensor) -> None:
    """Compare logits of the adapter's rows, prefilled at once and token by token, beside a base row."""
    held = AdapterBatch(load_config(base), dtype=torch.float32)
    for step in (64, 1):
        model, kv = load(base)
        beside = logits(model, kv, [prompt, PROMPTS[1]], step, held, [adapter, None])
        demand_close(beside[0], wanted, f"{step} tokens at a time")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe-unnormalized", "qwen2-moe", "llama4"])
def test_as_in_peft(name: str, form: str, families: Made, tmp_path: Path) -> None:
    if name == "qwen2-moe" and form == "by-modules":
        pytest.skip("PEFT adapts Qwen2-MoE's shared expert and dense layers by these names, and no experts")
    if name != "mixtral" and form == "one-layer":
        pytest.skip("one family is enough for the entries of target_parameters")
    if name == "llama4" and form in ("stacked", "router-only", "by-modules"):
        pytest.skip("PEFT cannot adapt the router of Llama 4, nor its experts by the names of modules")
    base, model = families(name)
    options = dict(FORMS[form])
    if (name, form) == ("mixtral", "by-modules"):
        options["target_modules"] = ["w1", "w2", "w3"]
    theirs = write_by_peft(model, tmp_path / "a", **options)
    wanted = expected_of(theirs, PROMPTS[0])
    assert (wanted - expected_of(model, PROMPTS[0])).abs().max() > 0.1, "the adapter changes nothing"
    demand_served(base, load_adapter(base, tmp_path / "a", tmp_path / "c"), PROMPTS[0], wanted)


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("name", [*CASES, f"mixtral{STACKED}", f"qwen2-moe{STACKED}", f"llama4{SINGLE}"])
def test_as_the_formulas(name: str, layout: str, families: Made, tmp_path: Path) -> None:
    base, model = families(name)
    made = WRITERS[layout](model, tmp_path / "a")
    wanted = expected_of(made.reference(), PROMPTS[0])
    assert (wanted - expected_of(model, PROMPTS[0])).abs().max() > 0.1, "the adapter changes nothing"
    demand_served(base, load_adapter(base, tmp_path / "a", tmp_path / "c"), PROMPTS[0], wanted)


def three_adapters(model: Any, folder: Path) -> tuple[dict[str, Path], list[Any]]:
    """Write adapters of three layouts; return their folders, and a reference for each and for the base."""
    written = {name: write(model, folder / name) for name, write in WRITERS.items() if name != "diagonal"}
    models = [*(made.reference() for made in written.values()), model]
    return {name: folder / name for name in written}, models


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v2", "deepseek-v3", "llama4"]
)
def test_three_adapters_and_base_rows_in_one_batch(name: str, families: Made, tmp_path: Path) -> None:
    """At every position: prompts at once, in chunks, and token by token as decode steps compute them."""
    base, model = families(name)
    folders, models = three_adapters(model, tmp_path)
    owners = [load_adapter(base, folder, tmp_path / "c") for folder in folders.values()]
    wanted = [expected_of(each, prompt) for each, prompt in zip(models, PROMPTS, strict=True)]
    held = AdapterBatch(load_config(base), dtype=torch.float32)
    for step in (64, 7, 1):
        found = logits(*load(base), PROMPTS, step, held, [*owners, None])
        for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            demand_close(ours, theirs, f"sequence {index}, {step} tokens at a time")


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v2", "deepseek-v3", "llama4"]
)
@pytest.mark.costly("generates 64 tokens of four sequences in transformers and in the engine")
def test_greedy_tokens_of_a_mixed_batch(
    name: str, families: Made, make_engine: EngineFactory, tmp_path: Path
) -> None:
    base, model = families(name)
    folders, models = three_adapters(model, tmp_path)
    expected = []
    for each, prompt in zip(models, PROMPTS, strict=True):
        each.generation_config.eos_token_id = None
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 64, "do_sample": False}
        expected.append(each.generate(ids, **options)[0, len(prompt) :].tolist())
    engine = make_engine(base, max_num_seqs=4, max_num_batched_tokens=16)
    owners = [load_adapter(base, folder, tmp_path / "c") for folder in folders.values()]
    for index, (prompt, owner) in enumerate(zip(PROMPTS, [*owners, None], strict=True)):
        engine.add_request(request(str(index), prompt, 64), owner)
    found = drain(engine)
    assert [tokens(found[str(index)]) for index in range(len(PROMPTS))] == expected
