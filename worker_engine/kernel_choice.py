"""Chooses the ops that run Triton kernels for this model: on CUDA, those that pass the self-check."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cache
from typing import Final

import torch

from kernels import selection
from kernels.self_check import ModelShapes, verify
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.checkpoint.quantization_config import Scheme
from worker_engine.config import PAGE_SIZE
from worker_engine.models import FAMILIES

log = logging.getLogger(__name__)

TRITON: Final = "triton"


def choose_kernels(model: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[selection.Op, str]:
    """Turn each op's kernels on or off for this process.

    Returns:
        By op "triton", or why PyTorch's operations run instead.

    Raises:
        ValueError: GRAFTWORK_WORKER_TRITON is malformed.
    """
    if device.type != "cuda":
        return dict.fromkeys(selection.OPS, f"{device.type}: the kernels are for CUDA")
    mode = selection.mode()
    if mode == "auto":
        problems = _verified(shapes_of(model, dtype), device)
    else:
        problems = dict.fromkeys(selection.OPS, "" if mode == "1" else "GRAFTWORK_WORKER_TRITON=0")
    selection.select([op for op, problem in problems.items() if not problem], device)
    return {op: problem or TRITON for op, problem in problems.items()}


def shapes_of(model: ModelConfig, dtype: torch.dtype) -> ModelShapes:
    """Return the model's shapes and formats on which kernels are specialized."""
    shapes = model.linear_shapes
    linears = {
        (shapes[modules[0]][1], tuple(shapes[module][0] for module in modules))
        for modules in PACKED_MODULES.values()
    }
    return ModelShapes(
        hidden=model.hidden_size,
        intermediate=model.intermediate_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        linears=tuple(sorted(linears)),
        windows=tuple(sorted({layer.window for layer in model.attention})),
        activation=FAMILIES[model.architecture].layer.activation,
        page_size=PAGE_SIZE,
        dtype=str(dtype),
        groups=_groups(model),
        fp8=any(scheme.coding == "e4m3" for scheme in _schemes(model)),
        mxfp4=any(scheme.coding == "e2m1" for scheme in _schemes(model)),
    )


def _schemes(model: ModelConfig) -> Collection[Scheme]:
    return () if model.quantization is None else model.quantization.targets.values()


def _groups(model: ModelConfig) -> tuple[tuple[int, bool], ...]:
    schemes = [scheme for scheme in _schemes(model) if scheme.bits == 4 and scheme.coding == "whole"]
    found = {(scheme.group, not scheme.symmetric) for scheme in schemes}
    return tuple(sorted(found))


@cache
def _verified(shapes: ModelShapes, device: torch.device) -> dict[selection.Op, str]:
    """Run the self-check, once per process and model shape; return each op's problem, "" if none."""
    problems = {op: problem for op, problem in verify(shapes, device).items() if op in selection.OPS}
    for op, problem in problems.items():
        if problem:
            log.error("the kernels of %s failed their self-check; PyTorch's operations run: %s", op, problem)
    return {op: problems[op] for op in selection.OPS}
