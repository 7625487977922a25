"""Layers of 4-bit checkpoints have the shapes of their plain weights: MXFP4, NVFP4, bitsandbytes, F4."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import pytest

from controlplane.catalog.module_shapes import UnknownShapeError, module_shapes
from controlplane.catalog.safetensors_header import DTYPE_BITS, HeaderError, TensorInfo, read_header

LAYER: Final = "model.layers.0."
Shape = tuple[int, ...]


def head(tensors: Mapping[str, tuple[str, Shape]]) -> tuple[bytes, int]:
    """Return a safetensors header, and the size of its file."""
    entries: dict[str, Any] = {}
    reached = 0
    for name, (dtype, shape) in tensors.items():
        end = reached + math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, end]}
        reached = end
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + reached


def infos(tensors: Mapping[str, tuple[str, Shape]]) -> Mapping[str, TensorInfo]:
    text, size = head(tensors)
    return read_header(io.BytesIO(text), size=size).tensors


def shapes(tensors: Mapping[str, tuple[str, Shape]], method: str, **data: bytes) -> dict[str, Shape]:
    """Return the modules' shapes; `data` holds the bytes of tensors by name."""
    config = {"quantization_config": {"quant_method": method}}
    return module_shapes(config, infos(tensors), lambda name: data[name])


def test_stacked_experts_in_mxfp4() -> None:
    """As GPT-OSS: 16 bytes hold 32 inputs of a row."""
    path = f"{LAYER}mlp.experts."
    found = shapes(
        {
            f"{path}gate_up_proj_blocks": ("U8", (4, 24, 3, 16)),
            f"{path}gate_up_proj_scales": ("U8", (4, 24, 3)),
            f"{path}gate_up_proj_bias": ("BF16", (4, 24)),
            f"{path}down_proj_blocks": ("U8", (4, 96, 2, 16)),
            f"{path}down_proj_scales": ("U8", (4, 96, 2)),
        },
        "mxfp4",
    )
    assert found == {
        f"{path}gate_up_proj": (4, 24, 96),
        f"{path}gate_up_proj_bias": (4, 24),
        f"{path}down_proj": (4, 96, 64),
    }


@pytest.mark.parametrize(
    "tensors",
    [
        {
            "weight_packed": ("U8", (16, 32)),
            "weight_scale": ("F8_E4M3", (16, 4)),
            "weight_global_scale": ("F32", (1,)),
        },
        {"weight": ("U8", (16, 32)), "weight_scale": ("F8_E4M3", (16, 4)), "weight_scale_2": ("F32", ())},
    ],
    ids=["compressed-tensors", "modelopt"],
)
def test_nvfp4(tensors: Mapping[str, tuple[str, Shape]]) -> None:
    path = f"{LAYER}self_attn.q_proj"
    found = shapes({f"{path}.{name}": item for name, item in tensors.items()}, "compressed-tensors")
    assert found == {path: (16, 64)}


def four_bits(layers: int, words: int = 256, kind: str = "nf4") -> dict[str, tuple[str, Shape]]:
    """Return the tensors of bitsandbytes' 4-bit layers; a state is of 64 bytes."""
    found: dict[str, tuple[str, Shape]] = {}
    for layer in range(layers):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        found |= {
            name: ("U8", (words, 1)),
            f"{name}.absmax": ("U8", (8,)),
            f"{name}.quant_map": ("F32", (16,)),
            f"{name}.quant_state.bitsandbytes__{kind}": ("U8", (64,)),
        }
    return found


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_states_the_shape_beside_the_weight(kind: str) -> None:
    """It is read once for the layers of a kind: each read may be a request to a store."""
    reads: list[str] = []

    def read(name: str) -> bytes:
        reads.append(name)
        return json.dumps({"quant_type": kind, "shape": [32, 16]}).encode()

    found = module_shapes({}, infos(four_bits(3, kind=kind)), read)
    assert found == {f"model.layers.{layer}.mlp.up_proj": (32, 16) for layer in range(3)}
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (b'{"shape": [32, 17]}', "256 bytes of .* do not fill"),
        (b'{"shape": [32]}', "do not fill"),
        (b'{"shape": [-32, -16]}', "do not fill"),
        (b'{"shape": "32 x 16"}', "do not fill"),
        (b"{}", "does not hold the shape"),
        (b"\xff\x00", "does not hold the shape"),
        (b"[" * 4000, "does not hold the shape"),
    ],
)
def test_a_false_state_is_refused_by_name(state: bytes, reason: str) -> None:
    with pytest.raises(UnknownShapeError, match=reason):
        module_shapes({}, infos(four_bits(1)), lambda name: state)


def test_values_of_4_and_6_bits_fill_whole_bytes() -> None:
    found = infos({"a": ("F4", (3, 4)), "b": ("F6_E2M3", (4, 5)), "c": ("F6_E3M2", (8,))})
    assert [(info.begin, info.end) for info in found.values()] == [(0, 6), (6, 21), (21, 27)]
    entry = {"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}
    text = json.dumps(entry).encode()
    with pytest.raises(HeaderError, match="does not fill whole bytes"):
        read_header(io.BytesIO(len(text).to_bytes(8, "little") + text), size=9 + len(text))
