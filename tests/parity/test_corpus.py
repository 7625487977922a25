"""Adapters that PEFT makes on transformers' architectures are registered, and broken ones are refused."""

from __future__ import annotations

import pytest

from tests.parity import references
from tests.parity.corpus import models, renames, table
from tests.parity.corpus.adapters import Part
from tests.parity.corpus.table import Row, examine, examine_all, render

SAMPLE = {
    "LlamaForCausalLM": {Part.ATTENTION, Part.MLP, Part.ALL_LINEAR, Part.EMBEDDING, Part.HEAD},
    "GPT2LMHeadModel": {Part.ATTENTION, Part.HEAD, Part.CLASSIFIER},
    "Qwen3MoeForCausalLM": {Part.STACKED_EXPERTS, Part.SINGLE_EXPERTS, Part.ROUTER},
    "MllamaForConditionalGeneration": {Part.ATTENTION, Part.VISION},
    "RobertaForSequenceClassification": {Part.CLASSIFIER, Part.ALL_LINEAR},
    "MambaForCausalLM": {Part.EMBEDDING, Part.HEAD},
    "GraniteMoeForCausalLM": {Part.ATTENTION, Part.STACKED_EXPERTS, Part.ROUTER},
    "Molmo2ForConditionalGeneration": {Part.ATTENTION, Part.MLP, Part.VISION, Part.EMBEDDING},
    "ElectraForCausalLM": {Part.ATTENTION, Part.CLASSIFIER},
}
"""Architectures of each kind, with parts that their adapters must have."""


def faults(row: Row) -> list[str]:
    """Return what must not happen: adapters that are refused, and broken ones that are accepted."""
    refused = [f"{part} is refused: {reason}" for part, reason in row.refused.items()]
    return [*([row.problem] if row.problem else []), *refused, *row.accepted]


@pytest.mark.costly("builds models in their published widths, and adapters on them")
@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture_is_registered_with_its_adapters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LAYERS", 2)
    architecture = next(item for item in models.architectures() if item.name == name)
    row = examine(architecture)
    assert faults(row) == []
    assert row.offers.keys() >= SAMPLE[name]
    assert row.num_mutations == 5 * len(row.offers)


def test_every_architecture_is_in_the_page() -> None:
    page = table.PATH.read_text(encoding="utf-8")
    missing = [item.name for item in models.architectures() if f"| {item.name} |" not in page]
    assert missing == [], "run python -m tests.parity.corpus"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # five minutes of CPU on each of two cores
def test_every_architecture_is_registered_as_the_page_says() -> None:
    references.load()
    rows = examine_all(models.architectures())
    served = [row for row in rows if row.vllm_serves_adapters]
    assert {row.architecture.name: row.refused for row in served if row.refused} == {}
    assert [fault for row in rows for fault in row.accepted] == []
    assert table.PATH.read_text(encoding="utf-8") == render(rows), "run python -m tests.parity.corpus"


@pytest.mark.slow
def test_renames_are_those_of_the_installed_transformers() -> None:
    written = renames.PATH.read_text(encoding="utf-8")
    assert written == renames.render(), "run python -m tests.parity.corpus.renames"
