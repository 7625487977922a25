"""Capabilities of engines, and the reasons in words why they do not serve something."""

from __future__ import annotations

import pytest

from contracts.capabilities.capability import TRAIT_NAMES, BaseNeeds, Capability, known_traits, missing_text
from contracts.capabilities.engines import ENGINES, adapter_offers, base_offers, capability
from contracts.capabilities.traits import AdapterNeeds, Trait
from contracts.capabilities.worker import WORKER

QWEN3 = BaseNeeds("Qwen3ForCausalLM")
PLAIN = AdapterNeeds(8)


def needs(*traits: Trait, rank: int = 8) -> AdapterNeeds:
    return AdapterNeeds(rank, frozenset(traits))


def test_every_trait_has_a_name() -> None:
    assert set(TRAIT_NAMES) == set(Trait)
    assert len(set(TRAIT_NAMES.values())) == len(Trait)


def test_a_missing_list_names_traits_in_order_then_the_rank() -> None:
    assert missing_text(["dora", "bias"], 64, 16) == "trained biases, DoRA, rank 64 (at most 16)"
    assert missing_text([], 16, 16) == missing_text([], 512, None) == ""
    assert missing_text(["of-2027"], 1, None) == "of-2027"


def test_unknown_traits_are_not_guessed() -> None:
    assert known_traits(["dora"]) == frozenset({Trait.DORA})
    assert known_traits(["dora", "of-2027"]) is None


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (QWEN3, ""),
        (BaseNeeds("Qwen3ForCausalLM", "awq"), ""),
        (BaseNeeds("Qwen3ForCausalLM", "gptq"), "the bundled worker does not serve gptq weights"),
        (BaseNeeds("DeepseekV32ForCausalLM"), "the bundled worker does not serve DeepseekV32ForCausalLM"),
    ],
)
def test_the_worker_says_why_it_does_not_serve_a_base(base: BaseNeeds, reason: str) -> None:
    assert WORKER.base_problem(base) == reason
    assert WORKER.adapter_problem(base, PLAIN) == reason


def test_the_worker_says_why_it_does_not_serve_an_adapter() -> None:
    assert WORKER.adapter_problem(QWEN3, needs(Trait.DORA, Trait.HEAD, rank=512)) == ""
    problem = WORKER.adapter_problem(QWEN3, needs(Trait.ROUTER, Trait.DORA))
    assert problem == "the bundled worker does not serve LoRA on the experts' router"
    assert WORKER.adapter_problem(BaseNeeds("MixtralForCausalLM"), needs(Trait.ROUTER, Trait.DORA)) == ""


def test_a_copys_own_limit_of_ranks_counts_beside_the_engines() -> None:
    engine = Capability("E 1", {"A": frozenset()}, max_rank=64)
    assert engine.adapter_problem(BaseNeeds("A"), needs(rank=64)) == ""
    assert engine.adapter_problem(BaseNeeds("A"), needs(rank=64), max_rank=16).endswith("(at most 16)")
    assert engine.adapter_problem(BaseNeeds("A"), needs(rank=65), max_rank=128).endswith("(at most 64)")


def test_an_architecture_may_be_served_without_adapters() -> None:
    engine = Capability("E 1", {"A": None})
    assert engine.base_problem(BaseNeeds("A")) == ""
    assert engine.adapter_problem(BaseNeeds("A"), PLAIN) == "E 1 serves A without adapters"


def test_an_engine_without_a_list_of_architectures_serves_any() -> None:
    engine = capability("tgi")
    assert engine is not None
    assert engine.adapter_problem(BaseNeeds("Odd"), PLAIN) == ""
    assert "DoRA" in engine.adapter_problem(BaseNeeds("Odd"), needs(Trait.DORA))


def test_engines_by_name() -> None:
    assert all(capability(name, "0.32.0") is not None for name in ENGINES)
    assert capability("vllm") is capability("vllm", "0.1.0") is capability("other") is capability("") is None


def test_offers_name_each_engine_and_vllm_by_its_versions() -> None:
    assert base_offers(QWEN3) == ["the bundled worker", "vLLM from 0.8.5 on"]
    assert base_offers(BaseNeeds("Unheard")) == []
    assert adapter_offers(QWEN3, needs(Trait.DORA)) == ["the bundled worker"]
    sparse, other = BaseNeeds("Qwen3MoeForCausalLM"), BaseNeeds("Qwen3VLMoeForConditionalGeneration")
    on_cpu = "the bundled worker (on the CPU)"
    assert adapter_offers(sparse, needs(Trait.EXPERTS)) == [on_cpu, "vLLM from 0.11.2 on"]
    assert adapter_offers(sparse, needs(Trait.DORA)) == [on_cpu]
    assert adapter_offers(other, needs(Trait.DORA)) == []
    assert base_offers(BaseNeeds("LlamaForCausalLM", "bitsandbytes")) == ["vLLM 0.8.5 to 0.27.1"]
