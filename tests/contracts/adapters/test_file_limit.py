"""The limit of an adapter's file grows with its base: experts multiply an adapter's size."""

from __future__ import annotations

from contracts.adapters.config import MAX_ADAPTER_BYTES
from contracts.adapters.file_limit import LARGEST_ADAPTER_BYTES, max_adapter_bytes

Shape = tuple[int, ...]
ATTENTION: dict[str, Shape] = {"q_proj": (4096, 2048), "k_proj": (512, 2048), "o_proj": (2048, 4096)}


def qwen3_30b(*, stacked: bool) -> dict[str, Shape]:
    """Return Qwen3-30B-A3B's modules with its experts in one of the two forms."""
    found: dict[str, Shape] = {"model.embed_tokens": (151_936, 2048), "lm_head": (151_936, 2048)}
    for layer in range(48):
        path = f"model.layers.{layer}."
        found |= {f"{path}self_attn.{name}": shape for name, shape in ATTENTION.items()}
        experts = f"{path}mlp.experts"
        if stacked:
            found |= {f"{experts}.gate_up_proj": (128, 1536, 2048), f"{experts}.down_proj": (128, 2048, 768)}
            continue
        for number in range(128):
            found[f"{experts}.{number}.gate_proj"] = found[f"{experts}.{number}.up_proj"] = (768, 2048)
            found[f"{experts}.{number}.down_proj"] = (2048, 768)
    return found


def test_adapters_on_the_experts_of_a_30b_are_taken_in_both_layouts() -> None:
    """At rank 32 in bf16 they have 2.6 and 3.4 GB; trainers that save float32 write twice as much."""
    assert max_adapter_bytes(qwen3_30b(stacked=True), 32) > 2 * 2_570_000_000
    assert max_adapter_bytes(qwen3_30b(stacked=False), 32) > 2 * 3_380_000_000


def test_a_small_base_has_the_common_limit_and_no_base_more_than_the_largest() -> None:
    assert max_adapter_bytes({"model.layers.0.self_attn.q_proj": (8, 8)}, 64) == MAX_ADAPTER_BYTES
    assert max_adapter_bytes(qwen3_30b(stacked=False), 512) == LARGEST_ADAPTER_BYTES
