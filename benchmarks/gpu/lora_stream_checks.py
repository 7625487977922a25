"""Multi-LoRA where time matters: races, side streams, copies while the device is busy. On CUDA only."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch

from benchmarks.gpu import lora_checks
from benchmarks.gpu.lora_checks import LoraCheck
from benchmarks.gpu.lora_form_checks import FULL, LONG
from benchmarks.gpu.lora_inputs import LoraInputs
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.timing import captured
from benchmarks.gpu.verdict import failed
from kernels.lora.plan import Capacity, GraphPlan, Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import tile_for

REPEATS: Final = 200
BUSY_CYCLES: Final = 800_000_000
"""Nearly half a second, in which the host runs far ahead of the device."""


def tasks() -> list[Task]:
    """Races in every mode, then streams and copies."""
    made: list[Task] = []
    for phase, check in (("decode", FULL), ("prefill", LONG)):
        modes = ((True, None), (True, False), (False, False), (True, True))
        for deterministic, fused in modes if phase == "decode" else modes[:3]:
            one = replace(check, name=f"race_{phase}", deterministic=deterministic, fused=fused)
            made.append(
                Task(one.key, {"op": "lora", "form": "race", "phase": phase}, partial(race, check=one))
            )
        for form, run in (("side_stream", side_stream), ("busy_device", busy_device)):
            inputs = {"op": "lora", "form": form, "phase": phase}
            made.append(Task(f"lora.{form}.{phase}", inputs, partial(run, check=check)))
    made.append(
        Task("lora.busy_graph", {"op": "lora", "form": "busy_graph"}, partial(busy_graph, check=FULL))
    )
    return made


def race(bench: Bench, check: LoraCheck) -> Row:
    """The same inputs 200 times: the same bits, or by atomics an error that does not move."""
    from kernels.lora import gpu

    inputs = check.draw(bench.device)
    rows = RankRows.stacked(inputs.weights)
    plan = Plan.build(inputs.row_adapter, rows, deterministic=check.deterministic)
    exact = lora_checks.expected(inputs, torch.float64)
    outs, errors, differing = [inputs.out.clone() for _ in range(REPEATS)], [], 0
    for out in outs:
        gpu.run(out, inputs.x, rows, plan, fused=check.fused)
    for out in outs:
        errors.append(float((out.double() - exact).abs().max()))
        differing += not torch.equal(out, outs[0])
    row = lora_checks.judge(inputs, outs[0]) | {"differing": differing, "errors": [min(errors), max(errors)]}
    if check.deterministic and differing:
        return row | failed(f"{differing} of {REPEATS} runs gave other bits")
    # By atomics the order of additions is free: a last bit of the largest value may flip, and no more.
    step = torch.finfo(inputs.x.dtype).eps * float(exact.abs().max())
    if not max(errors) - min(errors) <= step:
        return row | failed(f"the error moves from {min(errors):.3g} to {max(errors):.3g}")
    return row


def side_stream(bench: Bench, check: LoraCheck) -> Row:
    """A plan made and used on a stream that is not the default one, while that one works."""
    from kernels.lora import gpu

    inputs, out = _drawn(bench, check)
    rows = RankRows.stacked(inputs.weights)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        gpu.run(out, inputs.x, rows, Plan.build(inputs.row_adapter, rows))
    stream.synchronize()
    return lora_checks.judge(inputs, out)


def busy_device(bench: Bench, check: LoraCheck) -> Row:
    """Many plans copied from pinned memory, dropped at once, before the device runs any of their launches."""
    from kernels.lora import gpu

    inputs, _ = _drawn(bench, check)
    rows = RankRows.stacked(inputs.weights)
    count = len(inputs.row_adapter)
    turned = [inputs.row_adapter[turn:] + inputs.row_adapter[:turn] for turn in range(min(count, 40))]
    outs = [inputs.out.clone() for _ in turned]
    gpu.run(inputs.out.clone(), inputs.x, rows, Plan.build(turned[0], rows))  # compiles
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    for out, row_adapter in zip(outs, turned, strict=True):
        gpu.run(out, inputs.x, rows, Plan.build(row_adapter, rows))
    torch.cuda.synchronize()
    return _worst([replace(inputs, row_adapter=row_adapter) for row_adapter in turned], outs)


def busy_graph(bench: Bench, check: LoraCheck) -> Row:
    """A graph's plan loaded anew and again before the device has replayed the former batch."""
    from kernels.lora import gpu

    inputs, out = _drawn(bench, check)
    rows = RankRows.stacked(inputs.weights)
    count = len(inputs.row_adapter)
    plan = GraphPlan(rows, tile_for(1), Capacity(rows=count, items=1 << 15, shrunk=1 << 22))
    replay = captured(lambda: gpu.run_graph(out, inputs.x, rows, plan), bench.device)
    turned = [inputs.row_adapter[turn:] + inputs.row_adapter[:turn] for turn in range(count)]
    outs = []
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    for row_adapter in turned:
        plan.load(row_adapter, rows)
        out.copy_(inputs.out)
        replay()
        outs.append(out.clone())
    torch.cuda.synchronize()
    return _worst([replace(inputs, row_adapter=row_adapter) for row_adapter in turned], outs)


def _drawn(bench: Bench, check: LoraCheck) -> tuple[LoraInputs, torch.Tensor]:
    inputs = check.draw(bench.device)
    return inputs, inputs.out.clone()


def _worst(sets: list[LoraInputs], outs: list[torch.Tensor]) -> Row:
    found = [lora_checks.judge(inputs, out) for inputs, out in zip(sets, outs, strict=True)]
    bad = [row for row in found if not row["passed"]]
    row = (bad or [max(found, key=lambda row: row["max_error"])])[0]
    return row | {"batches": len(found), "failed_batches": len(bad)}
