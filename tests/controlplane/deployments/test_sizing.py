"""Memory of a copy on an instance: arithmetic that a person can follow, for known checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Any

import botocore.session
import pytest

from controlplane.deployments.sizing.instances import INSTANCES
from controlplane.deployments.sizing.requirements import GIB, Load, Shape, requirements
from controlplane.errors import InvalidInputError


def llama_shaped(
    *, hidden: int, kv: int, ff: int, layers: int, vocabulary: int
) -> dict[str, tuple[int, ...]]:
    """Modules of a Llama, as the catalogue keeps them; the head is its own or the embedding's, alike."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (vocabulary, hidden),
        "lm_head": (vocabulary, hidden),
    }
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, out, into in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", ff, hidden),
            ("mlp.up_proj", ff, hidden),
            ("mlp.down_proj", hidden, ff),
        ):
            found[f"{path}.{name}"] = (out, into)
        found[f"{path}.input_layernorm"] = (hidden,)
    return found


SMOLLM2 = Shape.from_modules(
    llama_shaped(hidden=576, kv=192, ff=1536, layers=30, vocabulary=49152),
    dtype="bfloat16",
    max_model_len=8192,
    file_bytes=269_060_552,
)
"""SmolLM2-135M: its head is the embedding, so only the file's size tells the weights."""
LLAMA_8B = Shape.from_modules(
    llama_shaped(hidden=4096, kv=1024, ff=14336, layers=32, vocabulary=128256),
    dtype="bfloat16",
    max_model_len=131072,
)


def test_shapes_are_what_the_checkpoints_have() -> None:
    # 32 layers x 2 x 1024 x 2 bytes = 128 KiB a token; 8.03e9 parameters.
    assert LLAMA_8B.kv_bytes == 131_072
    assert LLAMA_8B.weight_bytes == pytest.approx(2 * 8.03e9, rel=1e-3)
    # A rank-16 adapter of all linear layers of an 8B model has 41.9 million parameters.
    assert LLAMA_8B.lora_parameters * 16 == 41_943_040
    assert (SMOLLM2.kv_bytes, SMOLLM2.weight_bytes) == (23_040, 269_060_552)
    assert SMOLLM2.lora_parameters * 8 == 2_442_240


def test_an_8b_takes_one_gpu_of_48_gib_or_two_of_24() -> None:
    load = Load(sequences=32, tokens=4096, max_loras=4, max_lora_rank=16, max_cpu_loras=16)
    one = requirements(LLAMA_8B, "ml.g6e.2xlarge", load)
    assert (one.accelerators, one.copies_per_instance) == (1, 1)
    # 14.96 GiB of weights + 32 x 4096 x 128 KiB x 1.2 = 19.2 + 4 x 80 MiB: 34.47 GiB.
    assert one.kv_tokens == 32 * 4096 * 12 // 10
    assert any("34.47 GiB: 1 GPU" in reason for reason in one.reasons), one.reasons
    assert any("128 KiB a token" in reason for reason in one.reasons)
    # A GPU of 24 GiB has 20.6 to give: two.
    four = requirements(LLAMA_8B, "ml.g5.12xlarge", load)
    assert (four.accelerators, four.copies_per_instance) == (2, 2)
    # Half of the weights pass at a time; 16 adapters of 80 MiB wait in host memory, and the server has 2 GiB.
    assert four.memory_mb == pytest.approx(2048 + 16 * 80 + 14.957 * 1024 / 2, abs=2)


def test_a_small_model_fits_many_times_and_on_a_cpu() -> None:
    load = Load(sequences=16, tokens=2048, max_loras=4, max_lora_rank=8)
    cpu = requirements(SMOLLM2, "ml.m5.xlarge", load)
    assert (cpu.accelerators, cpu.cpus) == (0, 3.0)
    # 256.6 MiB + 16 x 2048 x 22.5 KiB x 1.2 + 4 adapters twice of 4.66 MiB + 2 GiB
    assert cpu.memory_mb == pytest.approx(256.6 + 864 + 2 * 4 * 4.66 + 2048, abs=1)
    gpu = requirements(SMOLLM2, "ml.g5.12xlarge", load)
    assert (gpu.accelerators, gpu.copies_per_instance) == (1, 4)


LLAMA_2_7B = Shape.from_modules(
    llama_shaped(hidden=4096, kv=4096, ff=11008, layers=32, vocabulary=32000),
    dtype="float16",
    max_model_len=4096,
)
MISTRAL_7B = Shape.from_modules(
    llama_shaped(hidden=4096, kv=1024, ff=14336, layers=32, vocabulary=32000),
    dtype="bfloat16",
    max_model_len=32768,
)


def test_the_two_models_of_document_001_fit_on_one_instance() -> None:
    """Llama 2 7B and Mistral 7B on one ml.g5.12xlarge, each with 2 GPUs and 14,336 MB, as documented.

    The document's containers take 0.8 of each GPU, adapters up to rank 64, and 4 adapters in host memory.
    """
    common: dict[str, Any] = {
        "max_lora_rank": 64,
        "max_cpu_loras": 4,
        "gpu_memory_utilization": 0.8,
        "devices": 2,
    }
    llama = requirements(LLAMA_2_7B, "ml.g5.12xlarge", Load(sequences=32, concurrency=8, **common))
    mistral = requirements(MISTRAL_7B, "ml.g5.12xlarge", Load(sequences=32, concurrency=4, **common))
    assert (llama.accelerators, mistral.accelerators) == (2, 2)

    # Two GPUs: 2 x (24 GiB x 0.8 - 1 GiB for the engine) = 36.4 GiB.
    usable = 2 * (24 * 0.8 - 1)
    # Weights of 6.74e9 parameters in 2 bytes: 12.55 GiB. A rank-64 adapter of the 7 linear layers:
    # 32 x (4 x 8192 + 3 x 15104) x 64 x 2 bytes = 305 MiB, four of them 1.19 GiB.
    weights, adapters = LLAMA_2_7B.weight_bytes / GIB, 4 * LLAMA_2_7B.lora_parameters * 64 * 2 / GIB
    assert (round(weights, 2), round(adapters, 2)) == (12.55, 1.19)
    # 2 x 32 layers x 4096 x 2 bytes = 512 KiB a token: 8 x 4096 x 512 KiB x 1.2 = 19.2 GiB.
    assert LLAMA_2_7B.kv_bytes == 512 * 1024
    assert weights + adapters + 19.2 < usable
    # Memory left for pages: 36.4 - 12.55 - 1.19 = 22.66 GiB, 11.3 sequences of 4096 tokens.
    assert any("22.66 GiB are left" in text and "11.3 sequences of 4096" in text for text in llama.reasons)

    # Mistral's 8 KV heads take 128 KiB a token: 4 x 32768 x 128 KiB x 1.2 = 19.2 GiB beside 13.49 GiB.
    assert MISTRAL_7B.kv_bytes == 128 * 1024
    assert round(MISTRAL_7B.weight_bytes / GIB, 2) == 13.49
    assert any("4 sequences (compute.concurrency, of 32 that may run)" in text for text in mistral.reasons)

    # Both together: 4 of the 4 GPUs, 24 of 48 cores, and less than 190 GiB of host memory.
    instance = INSTANCES["ml.g5.12xlarge"]
    assert llama.accelerators + mistral.accelerators == instance.accelerators
    assert llama.cpus + mistral.cpus <= instance.cpus
    assert max(llama.memory_mb, mistral.memory_mb) <= 7 * 2 * 1024
    assert llama.memory_mb + mistral.memory_mb <= (instance.memory_gib - 2) * 1024


def test_all_sequences_at_full_length_do_not_fit_and_the_refusal_says_so() -> None:
    load = Load(sequences=32, max_lora_rank=64, gpu_memory_utilization=0.8, devices=2)
    with pytest.raises(InvalidInputError, match=r"76\.80 GiB.*too little.*smaller compute\.concurrency"):
        requirements(LLAMA_2_7B, "ml.g5.12xlarge", load)


def test_a_larger_share_of_the_gpu_leaves_more_pages() -> None:
    def pages(share: float) -> str:
        load = Load(concurrency=4, gpu_memory_utilization=share, devices=2, max_loras=0)
        found = requirements(LLAMA_2_7B, "ml.g5.12xlarge", load)
        return next(text for text in found.reasons if text.startswith("pages: "))

    # 2 x (24 x 0.8 - 1) - 12.55 = 23.85; 2 x (24 x 0.9 - 1) - 12.55 = 28.65.
    assert pages(0.8).startswith("pages: 23.85 GiB")
    assert pages(0.9).startswith("pages: 28.65 GiB")


def test_no_adapters_take_no_room() -> None:
    fused = requirements(LLAMA_8B, "ml.g6e.2xlarge", Load(sequences=32, tokens=4096, max_loras=0))
    assert not any("adapters:" in reason for reason in fused.reasons)


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(InvalidInputError, match=r"19\.20 GiB.*too little.*take ml\.g6e\.xlarge"):
        requirements(LLAMA_8B, "ml.g5.2xlarge", Load(sequences=32, tokens=4096))
    with pytest.raises(InvalidInputError, match=r"take a larger type"):
        requirements(LLAMA_8B, "ml.m5.xlarge", Load(sequences=1, tokens=128))
    with pytest.raises(InvalidInputError, match=r"host memory"):
        requirements(LLAMA_8B, "ml.g6e.xlarge", Load(sequences=1, tokens=128, max_cpu_loras=300))
    with pytest.raises(InvalidInputError, match=r"is not known: set compute requirements manually"):
        requirements(LLAMA_8B, "ml.z9.large", Load())


def test_the_width_of_kv_heads_bounds_the_division() -> None:
    odd = dataclasses.replace(LLAMA_8B, kv_width=3 * 128 * 2 + 1)
    with pytest.raises(InvalidInputError, match="too little"):
        requirements(odd, "ml.g5.12xlarge", Load(sequences=32, tokens=4096))


def test_a_context_beyond_the_checkpoints_is_not_counted() -> None:
    whole = requirements(SMOLLM2, "ml.g5.2xlarge", Load(sequences=1, tokens=0, max_loras=0))
    more = requirements(SMOLLM2, "ml.g5.2xlarge", Load(sequences=1, tokens=10**6, max_loras=0))
    assert whole == more
    assert whole.kv_tokens == 8192 * 12 // 10


@pytest.mark.parametrize("dtype", ["int3", ""])
def test_an_unknown_dtype_has_no_size(dtype: str) -> None:
    with pytest.raises(InvalidInputError, match="is not known; known: float32"):
        Shape.from_modules({"l.layers.0.self_attn.k_proj": (8, 8)}, dtype=dtype, max_model_len=8)


def test_instance_types_are_sagemakers() -> None:
    model = botocore.session.Session().get_service_model("sagemaker")
    known = set(model.shape_for("ProductionVariantInstanceType").enum)
    assert set(INSTANCES) <= known
    assert all(item.accelerator_gib * GIB > 0 for item in INSTANCES.values() if item.accelerators)
