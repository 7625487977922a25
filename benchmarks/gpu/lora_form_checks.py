"""Forms of multi-LoRA that only the kernels have: pages of a pool, mixes, DoRA, graphs replayed on others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from benchmarks.gpu import lora_checks
from benchmarks.gpu.lora_checks import LoraCheck, single
from benchmarks.gpu.lora_inputs import LoraInputs
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.timing import captured
from benchmarks.gpu.verdict import failed, poisoned, verdict
from kernels.lora import LoraPair
from kernels.lora.plan import Capacity, GraphPlan, Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import tile_for

FULL: Final = LoraCheck(
    "", (64, 8, 16, 33, 32, 5), (4096, 1024, 1024), 4096, single([5, -1, 0, 3, 1, 2, 4, -1, 0, 3])
)
LONG: Final = replace(FULL, row_adapter=((2, 300), (-1, 5), (0, 64), (4, 1), (3, 17)))
QUICK: Final = LoraCheck("", (5, 8, 3), (24, 40), 32, single([2, 0, -1, 1, 2]), dtype="float16")


def tasks(quick: bool, device: str) -> list[Task]:
    """Each form on decode and prefill rows."""
    shapes = {"decode": QUICK} if quick else {"decode": FULL, "prefill": LONG}
    forms: dict[str, Callable[..., Row]] = {
        "paged": paged,
        "mixed": mixed,
        "dora": dora,
        "graph": graph,
        "overflow": overflow,
    }
    return [
        Task(f"lora.{form}.{phase}", {"op": "lora", "form": form, "phase": phase}, partial(run, check=check))
        for form, run in forms.items()
        for phase, check in shapes.items()
    ]


def launch(inputs: LoraInputs, rows: RankRows, **options: Any) -> torch.Tensor:
    """A result on poisoned scratch memory."""
    from kernels.lora import gpu

    out = inputs.out.clone()
    with poisoned():
        gpu.run(out, inputs.x, rows, Plan.build(inputs.row_adapter, rows), **options)
    return out


def paged(bench: Bench, check: LoraCheck) -> Row:
    """Weights scattered over pages whose unused parts are NaN, scaled by adapter."""
    inputs = check.draw(bench.device)
    size = 3 * max(check.inner, *check.widths) + 8
    pool, pages = _scatter(inputs, size)
    scales = [1.5 - 0.25 * index for index in range(len(check.ranks))]
    starts = [sum(check.widths[:index]) for index in range(len(check.widths))]
    columns = [slice(start, start + width) for start, width in zip(starts, check.widths, strict=True)]
    ranks = [check.ranks] * len(columns)
    rows = RankRows.paged(pool, pages, ranks, columns, check.inner, scales)
    scaled = [
        [pair and LoraPair(pair.a, pair.b * scale) for pair, scale in zip(row, scales, strict=True)]
        for row in inputs.pairs
    ]
    return lora_checks.judge(replace(inputs, pairs=scaled), launch(inputs, rows))


def _scatter(inputs: LoraInputs, size: int) -> tuple[torch.Tensor, list[list[Any]]]:
    matrices = [m for row in inputs.pairs for pair in row if pair for m in (pair.a, pair.b)]
    needed = sum(-(-m.shape[0] // (size // m.shape[1])) for m in matrices)
    pool = torch.full((needed + 7, size), float("nan"), dtype=inputs.x.dtype, device=inputs.x.device)
    free = list(range(needed + 7))
    random.Random(size).shuffle(free)

    def put(matrix: torch.Tensor) -> list[int]:
        held = []
        for chunk in torch.split(matrix, size // matrix.shape[1]):
            held.append(free.pop())
            pool[held[-1], : chunk.numel()] = chunk.reshape(-1)
        return held

    return pool, [[pair and (put(pair.a), put(pair.b)) for pair in row] for row in inputs.pairs]


def mixed(bench: Bench, check: LoraCheck) -> Row:
    """Several weighted adapters on a row, as one more adapter that names all their ranks."""
    inputs = check.draw(bench.device)
    members = [(0, 0.5), (2, -2.0), (1, 0.25)]
    last = len(check.ranks)
    rows = RankRows.stacked(inputs.weights).mixed([members])
    swapped = replace(inputs, row_adapter=[last if a == 0 else a for a in inputs.row_adapter])
    pairs = [[*row, _joined(row, members)] for row in inputs.pairs]
    return lora_checks.judge(replace(swapped, pairs=pairs), launch(swapped, rows))


def _joined(row: Sequence[LoraPair | None], members: Sequence[tuple[int, float]]) -> LoraPair:
    held = [(pair, weight) for index, weight in members if (pair := row[index]) is not None]
    return LoraPair(torch.cat([p.a for p, _ in held]), torch.cat([p.b * weight for p, weight in held]))


def dora(bench: Bench, check: LoraCheck) -> Row:
    """The magnitude multiplies the row's output without bias; rows without adapter keep theirs."""
    inputs = check.draw(bench.device)
    columns = sum(check.widths)
    gain = torch.rand(len(check.ranks), columns, device=bench.device) + 0.5
    bias = torch.randn(columns, device=bench.device).to(inputs.x.dtype)
    result = launch(inputs, RankRows.stacked(inputs.weights), gain=gain, bias=bias)
    exact, plain = (_magnified(inputs, gain, bias, dtype) for dtype in (torch.float64, inputs.x.dtype))
    return lora_checks.judge_beside(inputs, result, exact, plain)


def _magnified(
    inputs: LoraInputs, gain: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    result = lora_checks.expected(inputs, dtype)
    for row, adapter in enumerate(inputs.row_adapter):
        if adapter >= 0:
            result[row] = (result[row] - bias.to(dtype)) * gain[adapter].to(dtype) + bias.to(dtype)
    return result


def graph(bench: Bench, check: LoraCheck) -> Row:
    """Captured over an empty batch, replayed over ever more adapters and segments, then over fewer."""
    from kernels.lora import gpu

    inputs = check.draw(bench.device)
    rows = RankRows.stacked(inputs.weights)
    count = len(inputs.row_adapter)
    longest = max(count for _, count in check.row_adapter)
    tile = tile_for(min(longest, 16), inputs.x.element_size())
    plan = GraphPlan(rows, tile, Capacity(rows=count, items=1 << 16, shrunk=1 << 24))
    out = inputs.out.clone()
    replay = captured(lambda: gpu.run_graph(out, inputs.x, rows, plan), bench.device)
    every = inputs.row_adapter
    batches = [[-1] * count, [0] + [-1] * (count - 1), every, [0] * count, every[::-1], [-1] * count]
    worst: Row = {"passed": True}
    for index, row_adapter in enumerate(batches):
        plan.load(row_adapter, rows)
        plan.part.shrunk.fill_(float("nan"))
        out.copy_(inputs.out)
        replay()
        found = lora_checks.judge(replace(inputs, row_adapter=row_adapter), out)
        if not found["passed"]:
            return found | {"reason": f"batch {index}: {found['reason']}"}
        worst = max(worst, found, key=lambda row: row.get("max_error", 0.0))
    return worst | {"batches": len(batches)}


def overflow(bench: Bench, check: LoraCheck) -> Row:
    """A row that overflows leaves its neighbours' values finite, and right."""
    inputs = check.draw(bench.device)
    victim = next(row for row, adapter in enumerate(inputs.row_adapter) if adapter >= 0)
    sound = lora_checks.expected(inputs, torch.float64)
    plain = lora_checks.expected(inputs, inputs.x.dtype)
    inputs.x[victim] = float("inf")
    result = launch(inputs, RankRows.stacked(inputs.weights))
    if result[victim].isfinite().all():
        return failed("the overflow vanished")
    kept = [row for row in range(len(inputs.row_adapter)) if row != victim]
    return verdict(result[kept], sound[kept], plain[kept])
