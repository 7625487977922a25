"""Checks that fail in every way: `tests/kernels/test_self_check.py` runs them in a process of their own."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import torch

from kernels.norm import gpu
from kernels.quantization import DeviceMatrix, QuantizedWeight
from kernels.self_check import ModelShapes
from kernels.self_check import rows as own
from kernels.self_check.quantization import quantization


def wrong_norm(shapes: ModelShapes, device: torch.device) -> None:
    """The check of norms over a kernel whose results are off by a thousandth."""
    right = gpu.rms_norm

    def wrong(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> torch.Tensor:
        return right(x, weight, eps, out=out).mul_(1.001)

    gpu.rms_norm = wrong  # type: ignore[assignment]
    own.norm(shapes, device)


def unwritten_norm(shapes: ModelShapes, device: torch.device) -> None:
    """A kernel that leaves its output as it was."""
    gpu.rms_norm = lambda x, weight, eps, *, out: out  # type: ignore[assignment, misc]
    own.norm(shapes, device)


def wrong_zeros(shapes: ModelShapes, device: torch.device) -> None:
    """The check of quantized products over weights whose zeros lack."""
    right = DeviceMatrix.pack

    def wrong(weight: QuantizedWeight, device: torch.device) -> DeviceMatrix:
        return replace(right(weight, device), zeros=None)

    DeviceMatrix.pack = wrong  # type: ignore[method-assign]
    quantization(shapes, device)


def uncompilable(shapes: ModelShapes, device: torch.device) -> None:
    raise RuntimeError("out of resource: shared memory\nRequired: 300000")


def broken_context(shapes: ModelShapes, device: torch.device) -> None:
    """End the process as a GPU driver does."""
    os.abort()


def endless(shapes: ModelShapes, device: torch.device) -> None:
    time.sleep(600)  # a kernel that never ends: its caller must end the process
