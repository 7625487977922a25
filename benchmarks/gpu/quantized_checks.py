"""Products with quantized weights against their specification: every form, one row, few and many."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

import torch

from benchmarks.gpu.random_model import random_quantized
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.verdict import DTYPES, failed, implementation, poisoned, verdict
from kernels.quantization import DeviceMatrix, Fp8Matrix, Matrix, QuantizedWeight, linear, prepare, reference
from kernels.quantization.fp8_matrix import CAPABILITY
from kernels.quantization.weight import Coding


@dataclass(frozen=True, slots=True)
class QuantizedCheck:
    """One check."""

    rows: int
    out: int
    inner: int
    group: int
    zeros: bool
    dtype: str
    coding: Coding = "whole"

    @property
    def key(self) -> str:
        kind = self.coding if self.coding != "whole" else "zeros" if self.zeros else "symmetric"
        shape = f"{self.rows}x{self.inner}x{self.out}"
        return f"quantization.{kind}.{self.group}.{shape}.{self.dtype}"


SHAPES: Final = (
    (1, 4096, 4096, 128),
    (1, 6144, 4096, 32),
    (1, 431, 14336, 64),
    (6, 4096, 14336, 128),
    (16, 577, 4096, 64),
    (17, 28672, 4096, 128),
    (64, 4096, 4096, 32),
    (123, 1024, 576, 64),
    (2049, 6144, 4096, 128),
)
"""Rows, outputs, inputs, group: with inputs dealt out to several programs, and in one."""
QUICK: Final = ((1, 70, 192, 64), (6, 42, 96, 32), (19, 65, 256, 128))


def tasks(quick: bool, device: str) -> list[Task]:
    kinds = {"cpu path": ("bfloat16",), "interpreter": ("float16", "float32"), "kernels": tuple(DTYPES)}
    checks = [
        QuantizedCheck(*shape, zeros, dtype)
        for dtype in kinds[implementation(device)]
        for shape in (QUICK if quick else SHAPES)
        for zeros in (False, True)
    ]
    for coding in codings(device):
        checks += [
            replace(check, zeros=False, coding=coding, group=32 if coding == "e2m1" else 0)
            for check in checks
            if check.zeros
        ]
    return [
        Task(check.key, {"op": "quantization", **asdict(check)}, partial(run, check=check))
        for check in checks
    ]


def codings(device: str) -> tuple[Coding, ...]:
    """Of floats, those whose kernels this device has; a CPU has none."""
    if implementation(device) == "cpu path":
        return ()
    if device == "cuda" and torch.cuda.get_device_capability() < CAPABILITY:
        return ("e2m1",)
    return ("e2m1", "e4m3")


def run(bench: Bench, check: QuantizedCheck) -> Row:
    """Twice on poisoned memory, with a bias and a residual: right, and the same bits."""
    device, dtype = bench.device, DTYPES[check.dtype]
    weight = random_quantized(
        check.out, check.inner, check.group, zeros=check.zeros, coding=check.coding, device=device
    )
    x = torch.randn(check.rows, check.inner, device=device).to(dtype)
    bias = torch.randn(check.out, device=device).to(dtype)
    residual = torch.randn(check.rows, check.out, device=device).to(dtype)
    matrix = laid_out(weight, dtype, device)
    with poisoned():
        first, second = (linear(x, matrix, bias, residual) for _ in range(2))
    specified = reference.fp8_linear if check.coding == "e4m3" else reference.linear
    exact = specified(x.double(), weight, bias, residual)
    row = verdict(first, exact, specified(x, weight, bias, residual))
    row |= {"implementation": implementation(device)}
    return row if torch.equal(first, second) else row | failed("two runs over the same inputs differ")


def laid_out(weight: QuantizedWeight, dtype: torch.dtype, device: torch.device) -> QuantizedWeight | Matrix:
    """As the device's implementation takes it; where a CPU has no loops for it, as it is."""
    if implementation(device) != "cpu path":
        if weight.coding == "e4m3":
            return Fp8Matrix.pack(weight, device)
        return DeviceMatrix.pack(weight, device)
    return prepare(weight, dtype, device) or weight
