"""A plain checkpoint rewritten in the formats of published quantized ones, and its dequantized weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from kernels.quantization import QuantizedWeight
from kernels.quantization.formats import pack_awq, pack_columns, pack_dense, pack_e8m0, pack_mxfp4, pack_rows
from kernels.quantization.quantize import round_to_nearest, to_e4m3, to_mxfp4

Tensors = dict[str, torch.Tensor]

FORMS: Final = (
    "int4-32",
    "int4-64",
    "int4-128",
    "int4-32-zeros",
    "int4-128-zeros",
    "int8",
    "int8-plain",
    "awq-64",
    "awq-128",
    "gptq-64",
    "fp8",
    "mxfp4",
)


def weights_of(group: int, *, symmetric: bool, bits: int = 4, **changes: Any) -> dict[str, Any]:
    """A config group's weights as compressed-tensors writes them."""
    values: dict[str, Any] = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": group or None,
        "num_bits": bits,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "group" if group else "channel",
        "symmetric": symmetric,
        "type": "int",
    }
    return values | changes


def compressed(weights: Mapping[str, Any], form: str = "pack-quantized", **changes: Any) -> dict[str, Any]:
    """quantization_config as compressed-tensors writes it; `changes` of its one group."""
    group = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group | changes},
        "format": form,
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.2",
    }


def config_of(form: str) -> dict[str, Any]:
    kind, *rest = form.split("-")
    if kind == "awq":
        return {
            "bits": 4,
            "group_size": int(rest[0]),
            "modules_to_not_convert": None,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        }
    if kind == "gptq":
        return {
            "bits": 3,
            "group_size": int(rest[0]),
            "desc_act": False,
            "sym": False,
            "quant_method": "gptq",
            "true_sequential": True,
        }
    if kind == "mxfp4":
        weights = weights_of(32, symmetric=True, type="float", scale_dtype="torch.uint8")
        return compressed(weights, "mxfp4-pack-quantized")
    if kind == "fp8":
        inputs = weights_of(0, symmetric=True, bits=8, type="float", strategy="token", dynamic=True)
        return compressed(
            weights_of(0, symmetric=True, bits=8, type="float"), "float-quantized", input_activations=inputs
        )
    if kind == "int8":
        return compressed(
            weights_of(0, symmetric=True, bits=8), "int-quantized" if rest else "pack-quantized"
        )
    return compressed(weights_of(int(rest[0]), symmetric="zeros" not in rest))


def write_quantized(plain: Path, folder: Path, whole: Path, form: str, *, skip: tuple[str, ...] = ()) -> None:
    """Round every linear layer of `plain` to the nearest; `whole` gets the dequantized weights in fp32.

    Args:
        skip: ends of modules' names that stay as they are.
    """
    for target in (folder, whole):
        shutil.copytree(plain, target, dirs_exist_ok=True)
    kept: Tensors = {}
    dequantized: Tensors = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj") or module.endswith(skip or "\0"):
            kept[name] = dequantized[name] = tensor
            continue
        weight = _rounded(tensor.float(), form)
        kept |= {f"{module}.{part}": value for part, value in _packed(weight, form).items()}
        dequantized[name] = weight.dequantize()
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(dequantized, whole / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": config_of(form)}))


def _rounded(plain: torch.Tensor, form: str) -> QuantizedWeight:
    kind, *rest = form.split("-")
    if kind == "fp8":
        return to_e4m3(plain)
    if kind == "mxfp4":
        return to_mxfp4(plain)
    if kind == "int8":
        return round_to_nearest(plain, bits=8, group=plain.shape[1], zeros=False)
    dtype = torch.float16 if kind in ("awq", "gptq") else torch.bfloat16
    return round_to_nearest(
        plain,
        bits=3 if kind == "gptq" else 4,
        group=int(rest[0]),
        zeros=kind in ("awq", "gptq") or "zeros" in rest,
        dtype=dtype,
    )


def _packed(weight: QuantizedWeight, form: str) -> Tensors:
    if form.startswith("awq"):
        assert weight.zeros is not None
        return {
            "qweight": pack_awq(weight.codes),
            "qzeros": pack_awq(weight.zeros),
            "scales": weight.scales.T.contiguous(),
        }
    if form.startswith("gptq"):
        assert weight.zeros is not None
        return {
            "qweight": pack_dense(weight.codes, 3).T.contiguous(),
            "qzeros": pack_dense(weight.zeros.T - 1, 3),
            "scales": weight.scales.T.contiguous(),
        }
    if form == "mxfp4":
        return {"weight_packed": pack_mxfp4(weight.codes), "weight_scale": pack_e8m0(weight.scales)}
    if form in ("int8-plain", "fp8"):
        return {"weight": weight.codes, "weight_scale": weight.scales}
    codes = (weight.codes.short() + 128).to(torch.uint8) if weight.bits == 8 else weight.codes
    parts = {
        "weight_packed": pack_rows(codes, weight.bits),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts if weight.zeros is None else parts | {"weight_zero_point": pack_columns(weight.zeros, 4)}
