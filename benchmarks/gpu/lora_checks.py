"""Multi-LoRA against its specification: shapes, ranks, dtypes, modes; one task each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

import torch

from benchmarks.gpu.lora_inputs import LoraInputs
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.verdict import DTYPES, failed, implementation, poisoned, verdict
from kernels.lora import LoraPair, Segments, cpu, reference
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows


@dataclass(frozen=True)
class LoraCheck:
    """One check.

    Attributes:
        ranks: by adapter.
        row_adapter: runs of (adapter, rows).
        fused: one launch or two (dependent on each other on sm_90 and later); None as serving chooses.
    """

    name: str
    ranks: tuple[int, ...]
    widths: tuple[int, ...]
    inner: int
    row_adapter: tuple[tuple[int, int], ...]
    dtype: str = "bfloat16"
    deterministic: bool = True
    fused: bool | None = None

    @property
    def key(self) -> str:
        mode = {None: "chosen", True: "fused", False: "two_launches"}[self.fused]
        order = "deterministic" if self.deterministic else "atomics"
        return f"lora.{self.name}.{self.dtype}.{order}.{mode}"

    @property
    def rows(self) -> list[int]:
        return [adapter for adapter, count in self.row_adapter for _ in range(count)]

    def draw(self, device: torch.device) -> LoraInputs:
        return LoraInputs.draw(
            self.ranks, self.widths, self.inner, self.rows, dtype=DTYPES[self.dtype], device=device
        )


def single(adapters: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((adapter, 1) for adapter in adapters)


MIXED: Final = (1, 64, 0, 8, 512, 16, 3, 33, 128, 32, 256, 5)
SHAPES: Final = (
    LoraCheck("one_row", (16,), (4096,), 4096, single([0])),
    LoraCheck("decode_qkv", (16,) * 64, (4096, 1024, 1024), 4096, single(range(64))),
    LoraCheck("decode_last_adapter", (8,) * 256, (4096,), 4096, single([255, -1, 254, 255])),
    LoraCheck(
        "decode_mixed_ranks", MIXED, (4096, 1024, 1024), 4096, single([11, 4, -1, 2, 0, 9, 4, 7, 3, 1])
    ),
    LoraCheck(
        "decode_few_rows_each", (32, 8, 64), (28672,), 4096, ((2, 3), (-1, 2), (0, 16), (1, 7), (2, 9))
    ),
    LoraCheck("decode_down", (64, 16), (4096,), 14336, ((0, 1), (1, 8), (-1, 1), (0, 1))),
    LoraCheck("decode_256", (8, 16, 32, 64) * 64, (5120,), 8192, single(range(256))),
    LoraCheck("prefill_one_adapter", (16,), (4096, 1024, 1024), 4096, ((0, 2048),)),
    LoraCheck("prefill_mixed", MIXED, (14336, 14336), 4096, ((0, 431), (-1, 42), (4, 123), (9, 1), (7, 600))),
    LoraCheck("prefill_down", (64, 8), (8192,), 28672, ((1, 300), (0, 100))),
    LoraCheck("rank_512", (512,), (4096,), 4096, ((0, 1), (-1, 1), (0, 70))),
    LoraCheck("rank_0_only_rows", (0, 4), (512,), 1024, ((0, 5), (1, 1), (0, 3))),
    LoraCheck("empty_slice_widths", (4, 7), (6, 42, 123), 431, single([1, 0, -1, 1, 1])),
    LoraCheck("inner_2049", (16, 5), (431,), 2049, ((0, 1), (1, 6), (-1, 1), (0, 123))),
    LoraCheck("no_adapter_at_all", (16,), (512,), 512, ((-1, 9),)),
    LoraCheck(
        "decode_and_prefill", (16, 32, 8), (4096, 1024, 1024), 4096, ((0, 1), (1, 1), (2, 1024), (0, 5))
    ),
)
QUICK: Final = (
    LoraCheck("decode", (4, 0, 16, 40), (64, 33, 16), 123, single([3, -1, 0, 2, 1, 3, -1])),
    LoraCheck("prefill", (5, 7), (48,), 300, ((0, 3), (1, 20), (-1, 2), (0, 2))),
    LoraCheck("no_adapter_at_all", (4,), (16,), 32, ((-1, 3),)),
    LoraCheck("inner_2049", (0, 3), (6,), 2049, single([1, 0])),
)
MODES: Final = ((True, None), (True, True), (True, False), (False, False))
"""(deterministic, fused)."""


def checks(quick: bool, device: str) -> Iterator[LoraCheck]:
    """Every shape in bf16 in every mode; in fp16 and fp32 as serving chooses."""
    shapes = QUICK if quick else SHAPES
    if implementation(device) == "cpu path":
        yield from (replace(shape, dtype=dtype) for shape in shapes for dtype in ("bfloat16", "float32"))
        return
    # The interpreter's bf16 products are wrong.
    first, *others = ("float16", "float32") if device == "cpu" else ("bfloat16", "float16", "float32")
    for shape, (deterministic, fused) in itertools.product(shapes, MODES):
        if not (fused and _long(shape)):
            yield replace(shape, dtype=first, deterministic=deterministic, fused=fused)
    yield from (replace(shape, dtype=dtype) for shape in shapes for dtype in others)


def _long(shape: LoraCheck) -> bool:
    """Long segments have no fused kernel: it would hold the registers of both halves."""
    return max(count for _, count in shape.row_adapter) > 64


def tasks(quick: bool, device: str) -> list[Task]:
    return [
        Task(check.key, {"op": "lora", **asdict(check)}, partial(run, check=check))
        for check in checks(quick, device)
    ]


def run(bench: Bench, check: LoraCheck) -> Row:
    """Twice, with scratch memory poisoned and planned anew: right, and the same bits unless by atomics."""
    inputs = check.draw(bench.device)
    results = [inputs.out.clone() for _ in range(2)]
    for out in results:
        with poisoned():
            apply(check, inputs, out)
    row = judge(inputs, results[0])
    if check.deterministic and not torch.equal(*results):
        return row | failed("two runs over the same inputs differ")
    return row | {"implementation": implementation(bench.device)}


def apply(check: LoraCheck, inputs: LoraInputs, out: torch.Tensor) -> None:
    if implementation(out.device) == "cpu path":
        cpu.apply_lora(out, inputs.x, inputs.weights, Segments.group(inputs.row_adapter))
        return
    from kernels.lora import gpu

    rows = RankRows.stacked(inputs.weights)
    plan = Plan.build(inputs.row_adapter, rows, deterministic=check.deterministic)
    gpu.run(out, inputs.x, rows, plan, fused=check.fused)


def cast_pairs(inputs: LoraInputs, dtype: torch.dtype) -> list[list[LoraPair | None]]:
    return [
        [None if pair is None else LoraPair(pair.a.to(dtype), pair.b.to(dtype)) for pair in row]
        for row in inputs.pairs
    ]


def expected(inputs: LoraInputs, dtype: torch.dtype) -> torch.Tensor:
    """The specification in `dtype`."""
    out, x = inputs.out.to(dtype), inputs.x.to(dtype)
    return reference.apply_lora(out, x, cast_pairs(inputs, dtype), inputs.widths, inputs.row_adapter)


def judge(inputs: LoraInputs, result: torch.Tensor) -> Row:
    """Error in bounds, and rows without adapter as they were, bit for bit."""
    return judge_beside(inputs, result, expected(inputs, torch.float64), expected(inputs, result.dtype))


def judge_beside(inputs: LoraInputs, result: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> Row:
    """The same, by the specification's results in float64 and in the result's dtype."""
    untouched = torch.tensor([adapter < 0 for adapter in inputs.row_adapter], device=result.device)
    if not torch.equal(result[untouched], inputs.out[untouched]):
        return failed("a row without adapter changed")
    return verdict(result, exact, plain)
