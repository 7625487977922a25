"""Checks results: against float64, relative to PyTorch's error in the same dtype, on NaN-filled memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from benchmarks.gpu.task import Row

ALLOWED: Final = 2.0
"""Allowed ratio of our error to PyTorch's: another order of summation may be better or worse."""

DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def interpreted() -> bool:
    """Return True if kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def implementation(device: torch.device | str) -> str:
    """Return the implementation in use: "kernels", "interpreter" or "cpu path"."""
    if torch.device(device).type == "cuda":
        return "kernels"
    return "interpreter" if interpreted() else "cpu path"


def verdict(result: torch.Tensor, expected: torch.Tensor, torch_result: torch.Tensor) -> Row:
    """Pass if the largest error is at most twice PyTorch's, plus one rounding of the largest value.

    Args:
        expected: float64.
        torch_result: the same in the dtype of `result`, by plain PyTorch.
    """
    error = float((result.double() - expected).abs().max()) if result.numel() else 0.0
    torch_error = float((torch_result.double() - expected).abs().max()) if result.numel() else 0.0
    largest = float(expected.abs().max()) if result.numel() else 0.0
    bound = ALLOWED * torch_error + torch.finfo(result.dtype).eps * largest
    norm = float((result.double() - expected).norm() / expected.norm().clamp_min(1e-30))
    passed = error <= bound  # false for NaN
    row: Row = {"passed": passed, "max_error": error, "torch_max_error": torch_error, "relative": norm}
    if not passed:
        row["reason"] = f"max error {error:.3g}, PyTorch's {torch_error:.3g}, relative {norm:.3g}"
    return row


def failed(reason: str) -> Row:
    return {"passed": False, "reason": reason}


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill results of `torch.empty` with NaN (integers with their largest value) inside the context."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    previous = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = previous  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(False)


def op_module(op: str, device: torch.device) -> Any:
    """Return `kernels.<op>.gpu` where kernels run, on the device or interpreted; else its CPU path."""
    module = "cpu" if implementation(device) == "cpu path" else "gpu"
    return importlib.import_module(f"kernels.{op}.{module}")
