"""The table of vLLM's versions, against what its documentation and source say of single facts."""

from __future__ import annotations

import pytest

from contracts.capabilities.capability import BaseNeeds, Capability
from contracts.capabilities.traits import AdapterNeeds, Trait
from contracts.capabilities.vllm import examined_versions, version_of, vllm_capability
from tests.contracts.capabilities.vllm_table import _span


def served_by(version: str) -> Capability:
    found = vllm_capability(version)
    assert found is not None
    return found


def problem(version: str, architecture: str, *traits: Trait, rank: int = 8) -> str:
    return served_by(version).adapter_problem(BaseNeeds(architecture), AdapterNeeds(rank, frozenset(traits)))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.32.0", (0, 32, 0)),
        ("v0.11.2rc1.dev3+cu128", (0, 11, 2)),
        ("0.20.0+amzn2023.3f5bd482", (0, 20, 0)),
        ("0.10", (0, 10, 0)),
        ("dev", None),
        ("", None),
        ("1", None),
        ("9999999999.1", None),
    ],
)
def test_versions_are_read_as_servers_write_them(text: str, numbers: tuple[int, ...] | None) -> None:
    assert version_of(text) == numbers


def test_a_version_of_two_numbers_is_the_first_of_its_three() -> None:
    """0.31 was older than 0.31.0, the first version with classification heads."""
    assert served_by("0.31").architectures == served_by("0.31.0").architectures


def test_texts_of_servers_fill_no_memory() -> None:
    """A server may report any text as its version."""
    for number in range(150):
        vllm_capability(f"0.32.0+build{number}")
    assert vllm_capability.cache_info().currsize <= 128


def test_a_version_between_two_examined_ones_has_the_traits_of_both() -> None:
    """0.11.0, the first with Qwen3-VL, lies between 0.10.2 and 0.11.2, the examined ones."""
    assert Trait.EXPERTS not in (served_by("0.10.2").adapter_traits("Qwen3MoeForCausalLM") or ())
    assert Trait.EXPERTS in (served_by("0.11.0").adapter_traits("Qwen3MoeForCausalLM") or ())
    assert not problem("0.11.0", "Qwen3VLForConditionalGeneration")
    assert problem("0.10.2", "Qwen3VLForConditionalGeneration")
    assert served_by("0.99.0").architectures == served_by(examined_versions()[-1]).architectures
    assert vllm_capability("0.8.4") is None


@pytest.mark.parametrize("version", examined_versions())
def test_every_version_refuses_what_vllm_has_never_served(version: str) -> None:
    for trait in (
        Trait.DORA,
        Trait.BIAS,
        Trait.LORA_BIAS,
        Trait.SAVED_MODULES,
        Trait.TRAINED_ROWS,
        Trait.VISION,
        Trait.ABSORBED_PROJECTION,
    ):
        assert problem(version, "LlamaForCausalLM", trait)
    assert not problem(version, "LlamaForCausalLM", rank=512)
    assert "at most 512" in problem(version, "LlamaForCausalLM", rank=513)


@pytest.mark.parametrize(
    ("architecture", "trait", "last_without", "first_with"),
    [
        ("Qwen3MoeForCausalLM", Trait.EXPERTS, "0.10.2", "0.11.2"),
        ("GptOssForCausalLM", Trait.STACKED_EXPERTS, "0.11.2", "0.12.0"),
        ("Qwen3NextForCausalLM", Trait.LINEAR_ATTENTION, "0.14.1", "0.15.1"),
        ("Qwen3MoeForCausalLM", Trait.ROUTER, "0.21.0", "0.22.1"),
        ("Qwen3ForCausalLM", Trait.EMBEDDING, "0.15.1", "0.16.0"),
        ("Qwen3ForCausalLM", Trait.CLASSIFICATION, "0.30.0", "0.31.0"),
    ],
)
def test_traits_came_with_a_version(
    architecture: str, trait: Trait, last_without: str, first_with: str
) -> None:
    assert problem(last_without, architecture, trait)
    assert not problem(first_with, architecture, trait)


def test_a_class_with_stacked_experts_takes_no_single_ones() -> None:
    assert problem("0.32.0", "GptOssForCausalLM", Trait.EXPERTS)
    assert not problem("0.32.0", "GptOssForCausalLM", Trait.STACKED_EXPERTS)


def test_architectures_come_go_and_get_adapters() -> None:
    assert problem("0.16.0", "Qwen3_5ForConditionalGeneration").endswith("Qwen3_5ForConditionalGeneration")
    assert not problem("0.17.1", "Qwen3_5ForConditionalGeneration")
    assert problem("0.32.0", "MambaForCausalLM") == "vLLM 0.32.0 serves MambaForCausalLM without adapters"
    assert not served_by("0.21.0").base_problem(BaseNeeds("QWenLMHeadModel"))
    assert served_by("0.32.0").base_problem(BaseNeeds("QWenLMHeadModel"))


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors", "mxfp4"])
def test_methods_of_checkpoints_are_known_by_their_names_there(method: str) -> None:
    assert not served_by("0.32.0").base_problem(BaseNeeds("LlamaForCausalLM", method))


def test_parameters_by_endpoint() -> None:
    assert "cache_salt" not in served_by("0.8.5").parameters["chat"]
    assert {"cache_salt", "chat_template_kwargs"} <= served_by("0.32.0").parameters["chat"]
    assert "chat_template_kwargs" not in served_by("0.32.0").parameters["completions"]


def test_spans_of_facts() -> None:
    versions = ["1.0", "1.1", "1.2", "1.3"]
    assert _span(versions, lambda version: version in {"1.0", "1.1"}) == "1.0..1.2"
    assert _span(versions, lambda version: version != "1.1") == "1.0..1.1,1.2"
    assert _span(versions, lambda version: version == "1.3") == "1.3"
