"""Timed rows of quantized linear layers against PyTorch's products with unquantized weights, alternating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch.nn.functional import linear

from benchmarks.gpu import lora_inputs
from benchmarks.gpu.kernel_rows import against_ceilings
from benchmarks.gpu.lora_inputs import Work
from benchmarks.gpu.random_model import random_quantized
from benchmarks.gpu.shapes import Layer
from benchmarks.gpu.task import Bench, Row
from benchmarks.gpu.timing import Call, Timing, time_calls
from kernels.quantization import DeviceMatrix, Fp8Matrix, QuantizedWeight, reference
from kernels.quantization import linear as quantized_linear
from kernels.quantization.fp8_matrix import CAPABILITY
from kernels.quantization.weight import Coding

SAME: Final = 0.02
"""Allowed relative difference of two correct 16-bit results, one with weights rounded to 16 bits."""


@dataclass(frozen=True, slots=True)
class Form:
    """How weights are quantized. `group` inputs share a scale, 0 for a whole channel."""

    name: str
    group: int
    zeros: bool = False
    coding: Coding = "whole"

    def draw(self, out: int, inner: int, device: torch.device) -> QuantizedWeight:
        return random_quantized(out, inner, self.group, zeros=self.zeros, coding=self.coding, device=device)


FORMS: Final = (
    Form("int4_g128", 128),
    Form("awq_g128", 128, zeros=True),
    Form("fp8", 0, coding="e4m3"),
    Form("mxfp4", 32, coding="e2m1"),
    Form("int4_g32", 32),
)
QUICK_FORMS: Final = (
    Form("int4_g32", 32),
    Form("awq_g32", 32, zeros=True),
    Form("fp8", 0, coding="e4m3"),
    Form("mxfp4", 32, coding="e2m1"),
)


def forms(quick: bool, device: str) -> tuple[Form, ...]:
    """Return the formats whose kernels this device supports."""
    every = QUICK_FORMS if quick else FORMS
    if device != "cuda" or torch.cuda.get_device_capability() >= CAPABILITY:
        return every
    return tuple(form for form in every if form.coding != "e4m3")


@dataclass(frozen=True, slots=True)
class Pair:
    """One layer's weights in two forms, with their inputs.

    Attributes:
        ours: the product with the quantized weights.
        theirs: the product with the same weights dequantized.
        specified: the reference for `ours`.
        weight_bytes: of the quantized weights.
    """

    ours: Call
    theirs: Call
    specified: Call
    weight_bytes: int


def pair(form: Form, layer: Layer, x: torch.Tensor) -> Pair:
    """Draw the weights on x's device; the dequantized ones have x's dtype."""
    weight = form.draw(sum(layer.widths), layer.inner, x.device)
    fp8 = form.coding == "e4m3"
    matrix = Fp8Matrix.pack(weight, x.device) if fp8 else DeviceMatrix.pack(weight, x.device)
    theirs = partial(linear, x, weight.dequantize().to(x.dtype))
    # FP8 products also round their inputs.
    specified = partial(_fp8_product, x, matrix) if isinstance(matrix, Fp8Matrix) else theirs
    return Pair(partial(quantized_linear, x, matrix), theirs, specified, matrix.nbytes)


def _fp8_product(x: torch.Tensor, matrix: Fp8Matrix) -> torch.Tensor:
    return reference.fp8_linear(x, matrix.weight())


def one_layer(bench: Bench, form: Form, layer: Layer, rows: int) -> Row:
    """Time one layer, rotating among weights that exceed the cache."""
    draw = partial(_input, bench, layer, rows)
    first = pair(form, layer, draw())
    work = _work(first.weight_bytes, layer, rows)
    count = lora_inputs.sets_needed(work.nbytes, bench.device, quick=bench.quick)
    pairs = [first, *(pair(form, layer, draw()) for _ in range(count - 1))]
    return _timed(bench, pairs, work) | {"input_sets": count}


def all_layers(bench: Bench, form: Form, layers: Sequence[Layer], rows: int) -> Row:
    """Time every linear layer of a model's decoder layers in sequence: the weight-reading part of a step.

    The figures are per product, as means.
    """
    inputs: Mapping[int, torch.Tensor] = {layer.inner: _input(bench, layer, rows) for layer in layers}
    copies = 1 if bench.quick else layers[0].copies
    every = [layer for _ in range(copies) for layer in layers]
    pairs = [pair(form, layer, inputs[layer.inner]) for layer in every]
    works = [_work(one.weight_bytes, layer, rows) for one, layer in zip(pairs, every, strict=True)]
    count = len(pairs)
    mean = Work(sum(one.nbytes for one in works) // count, sum(one.flops for one in works) // count)
    return _timed(bench, pairs, mean) | {"products": count}


def _input(bench: Bench, layer: Layer, rows: int) -> torch.Tensor:
    # The interpreter's bf16 products are wrong.
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float16
    return torch.randn(rows, layer.inner, device=bench.device).to(dtype)


def _work(weight_bytes: int, layer: Layer, rows: int) -> Work:
    """Return the minimum traffic: the stored weights once, x once, the output once."""
    columns = sum(layer.widths)
    return Work(weight_bytes + 2 * rows * (layer.inner + columns), 2 * rows * layer.inner * columns)


def _timed(bench: Bench, pairs: Sequence[Pair], work: Work) -> Row:
    difference = _difference(pairs[0].ours, pairs[0].specified)
    if not difference <= SAME:
        return {"passed": False, "reason": f"differs by {difference:.3g} from what is specified"}
    groups = [[one.ours for one in pairs], [one.theirs for one in pairs]]
    ours, theirs = time_calls(groups, bench.device, rounds=3 if bench.quick else 20)
    return against_ceilings(bench, ours, work) | _speedup(ours, theirs) | {"difference": difference}


def _speedup(ours: Timing, theirs: Timing) -> Row:
    speedup = round(theirs.median_us / ours.median_us, 3)
    return {"whole_us": theirs.to_json(), "speedup": speedup}


def _difference(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    found, expected = ours(), theirs()
    assert isinstance(found, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    return float((found.double() - expected.double()).norm() / expected.double().norm())
