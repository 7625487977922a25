"""The matrix: each rule refuses its stack with its reason, all reasons come at once, what is sound passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.capabilities.worker import ARCHITECTURES
from contracts.recipes.compatibility import OURS, SAGEMAKERS, Stack, reasons
from contracts.recipes.model_facts import ModelFacts, Situation
from contracts.recipes.recipe import OWN_DRAFT, Recipe
from contracts.recipes.spec_fields import SpecError
from worker_engine.models import FAMILIES

AWAY = {"engine": "sagemaker", "hardware": "sm90", "instance_type": "ml.p5.48xlarge"}
ON_A100 = {"engine": "sagemaker", "hardware": "sm80", "instance_type": "ml.p4d.24xlarge"}
NEURON = {"engine": "sagemaker", "hardware": "neuron", "instance_type": "ml.inf2.48xlarge"}
DRAFT = {"method": "draft", "draft_model": "small"}
THEIRS = {"method": "draft", "draft_model": OWN_DRAFT}
LLAMA = ModelFacts("LlamaForCausalLM", "", "vocabulary", "bfloat16")


def stack(recipe: dict[str, Any], model: ModelFacts = LLAMA, **options: Any) -> Stack:
    return Stack(Recipe.from_dict({"version": 1, **recipe}), model, **options)


REFUSED: dict[str, Stack] = {
    "architecture_not_served": stack({}, replace(LLAMA, architecture="MambaForCausalLM")),
    "experts_keep_their_weights": stack(
        {"quantization": "int8"}, replace(LLAMA, architecture="MixtralForCausalLM")
    ),
    "quantized_already": stack({"quantization": "int8"}, replace(LLAMA, quantized="awq")),
    "fp8_hardware": stack({"quantization": "fp8", "target": ON_A100}),
    "int8_head": stack({"quantization": "int8", "head": "int8", "target": {"hardware": "sm90"}}),
    "merged_adapter_on_quantized_base": stack(
        {"quantization": "int8"}, situation=Situation(merge_adapter=True)
    ),
    "merged_copy_of_quantized": stack({}, replace(LLAMA, quantized="awq"), merges=True),
    "merged_copy_with_quantization": stack({"quantization": "int8"}, merges=True),
    "merged_copy_is_local": stack({"compilation": {"ahead_of_time": True}, "target": AWAY}, merges=True),
    "draft_vocabulary": stack({"speculation": DRAFT}, draft=replace(LLAMA, vocabulary="another")),
    "draft_architecture": stack({"speculation": DRAFT}, draft=replace(LLAMA, architecture="Mamba")),
    "eagle_is_not_served_here": stack({"speculation": {"method": "eagle"}}),
    "packed_form_is_the_cpus": stack({"compilation": {"packed": True}, "target": {"hardware": "sm80"}}),
    "gpu_kernels_at_start": stack({"compilation": {"ahead_of_time": True}, "target": {"hardware": "sm80"}}),
    "one_device": stack({"tensor_parallel": {"degree": 2}}),
    "shards_of_one": stack({"tensor_parallel": {"presharded": True}}),
    "neuron_by_sagemaker": stack({"target": {"hardware": "neuron"}}),
    "sagemaker_draft_elsewhere": stack({"speculation": THEIRS}),
    "sagemaker_draft_component": stack(
        {"quantization": "fp8", "speculation": THEIRS, "target": AWAY},
        situation=Situation(inference_components=True),
    ),
    "sagemaker_draft_script": stack(
        {"quantization": "fp8", "speculation": THEIRS, "target": AWAY},
        situation=Situation(custom_inference_script=True),
    ),
    "sagemaker_draft_local_testing": stack(
        {"quantization": "fp8", "speculation": THEIRS, "target": AWAY},
        situation=Situation(local_testing=True),
    ),
    "sagemaker_draft_fine_tuned": stack(
        {"quantization": "fp8", "speculation": THEIRS, "target": AWAY},
        situation=Situation(fine_tuned_outside_jumpstart=True),
    ),
    "sagemaker_compilation_with_speculation": stack(
        {"compilation": {"ahead_of_time": True}, "speculation": {"method": "ngram"}, "target": AWAY}
    ),
    "sagemaker_needs_an_instance": stack(
        {"quantization": "fp8", "target": {"engine": "sagemaker", "hardware": "sm90"}}
    ),
    "sagemaker_accelerators": stack({"quantization": "awq_int4_g128", "target": {**AWAY, "hardware": "cpu"}}),
    "sagemaker_schemes": stack({"quantization": "int8", "target": AWAY}),
    "instance_of_sagemaker": stack({"target": {"instance_type": "ml.g5.12xlarge"}}),
    "sagemaker_compilation_with_sharding": stack(
        {
            "compilation": {"ahead_of_time": True},
            "tensor_parallel": {"degree": 8, "presharded": True},
            "target": AWAY,
        }
    ),
    "tensorrt_llama": stack(
        {"compilation": {"ahead_of_time": True}, "target": AWAY}, replace(LLAMA, names=("llama-3.1-8b",))
    ),
    "sagemaker_hardware_of_instance": stack({"quantization": "fp8", "target": {**AWAY, "hardware": "sm89"}}),
    "sagemaker_neuron_quantization": stack({"quantization": "awq_int4_g128", "target": NEURON}),
    "sagemaker_neuron_speculation": stack({"speculation": {"method": "ngram"}, "target": NEURON}),
    "sagemaker_neuron_sharding": stack(
        {"tensor_parallel": {"degree": 8, "presharded": True}, "target": NEURON}
    ),
    "sagemaker_nothing_to_do": stack({"target": AWAY}),
    "compiled_shapes_elsewhere": stack(
        {"quantization": "fp8", "target": AWAY, "compilation": {"batch_size": 8}}
    ),
    "compiled_sequence_length": stack(
        {"compilation": {"ahead_of_time": True, "sequence_length": 8192}, "target": NEURON},
        replace(LLAMA, max_model_len=4096),
    ),
    "sagemaker_draft_source": stack({"quantization": "fp8", "speculation": DRAFT, "target": AWAY}),
}


@pytest.mark.parametrize("code", REFUSED)
def test_each_rule_refuses_its_own(code: str) -> None:
    told = reasons(REFUSED[code])
    assert [reason.code for reason in told] == [code]
    assert "{" not in told[0].text


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in (*OURS, *SAGEMAKERS)} == set(REFUSED)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"quantization": "int8", "speculation": {"method": "ngram"}, "compilation": {"ahead_of_time": True}},
        {"quantization": "awq_int4_g64", "target": {"hardware": "sm80"}},
        {"quantization": "int8", "compilation": {"ahead_of_time": True, "packed": True}},
        {"quantization": "fp8", "speculation": THEIRS, "target": AWAY},
        {"compilation": {"ahead_of_time": True}, "target": NEURON},
        {"compilation": {"ahead_of_time": True, "sequence_length": 4096, "batch_size": 16}, "target": AWAY},
        {"quantization": "fp8", "compilation": {"ahead_of_time": True}, "target": AWAY},
        {"quantization": "awq_int4_g128", "compilation": {"ahead_of_time": True}, "target": ON_A100},
        {"tensor_parallel": {"degree": 8, "presharded": True}, "target": AWAY},
    ],
)
def test_what_goes_together_passes(recipe: dict[str, Any]) -> None:
    assert reasons(stack(recipe)) == []


def test_a_draft_model_of_the_same_vocabulary_passes() -> None:
    assert reasons(stack({"speculation": DRAFT}, draft=LLAMA)) == []


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("meta-llama/Llama-3.1-8B", True),
        ("meta-textgeneration-llama-3-1-8b-instruct", True),
        ("llama-3.3-70b", True),
        ("meta-textgeneration-llama-3-8b-instruct", False),
        ("meta-llama/Meta-Llama-3-70B", False),
        ("llama-2-7b", False),
    ],
)
def test_tensorrt_llm_compiles_llama_models_up_to_3_0(name: str, refused: bool) -> None:
    recipe = {"compilation": {"ahead_of_time": True}, "target": AWAY}
    told = reasons(stack(recipe, replace(LLAMA, names=("base", name))))
    assert [reason.code for reason in told] == (["tensorrt_llama"] if refused else [])


@pytest.mark.parametrize("method", ["none", "eagle"])
def test_draft_tokens_without_a_proposer_of_ours_are_refused(method: str) -> None:
    with pytest.raises(SpecError, match="tokens"):
        stack({"speculation": {"method": method, "tokens": 6}, "target": AWAY})


def test_all_reasons_come_at_once() -> None:
    everything = Situation(True, True, True, True, True)
    told = reasons(
        stack(
            {
                "quantization": "int8",
                "speculation": THEIRS,
                "compilation": {"ahead_of_time": True, "packed": True},
                "target": {"engine": "sagemaker"},
            },
            situation=everything,
        )
    )
    assert len(told) == len({reason.code for reason in told}) == 10


def test_architectures_are_the_workers() -> None:
    assert set(ARCHITECTURES) == set(FAMILIES)


def test_facts_of_a_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    facts = ModelFacts.read(tiny_model)
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.quantized == ""
    assert facts.vocabulary is not None
    with pytest.raises(SpecError, match="is not a folder"):
        ModelFacts.read(tmp_path / "none")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(SpecError, match=r"holds no \*\.safetensors, only pytorch_model\.bin: convert"):
        ModelFacts.read(tmp_path)


def test_a_vocabulary_is_its_tokens_by_id(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny_model / name).read_bytes())
    same = ModelFacts.read(tmp_path).vocabulary
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokens = tokenizer["model"]["vocab"]
    first, second = list(tokens)[:2]
    tokens[first], tokens[second] = tokens[second], tokens[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert same == ModelFacts.read(tiny_model).vocabulary != ModelFacts.read(tmp_path).vocabulary
