"""One timed row of an op: its time on rotating inputs, relative to the ceilings, and the peer's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from benchmarks.gpu import lora_inputs
from benchmarks.gpu.attention_inputs import AttentionInputs, Heads
from benchmarks.gpu.attention_inputs import work as attention_work
from benchmarks.gpu.lora_inputs import LoraInputs, Work
from benchmarks.gpu.peers import PeerAbsent, VllmOps
from benchmarks.gpu.row_ops import OPS
from benchmarks.gpu.shapes import PACKED, Batch, Layer, Model, ranks_of
from benchmarks.gpu.task import Bench, Row
from benchmarks.gpu.timing import Call, Timing, host_us, time_calls
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows

SAME: Final = 0.05
"""Allowed relative difference of two correct bf16 results, each rounded when added to the base output."""


def against_ceilings(bench: Bench, timing: Timing, work: Work) -> Row:
    """Return the figures that every timed row has."""
    seconds = timing.median_us * 1e-6
    roofline = bench.ceilings.roofline_us(work.nbytes, work.flops)
    return {
        "time_us": timing.to_json(),
        "bytes": work.nbytes,
        "flops": work.flops,
        "bandwidth_fraction": round(work.nbytes / seconds / bench.ceilings.bandwidth, 4),
        "matmul_fraction": round(work.flops / seconds / bench.ceilings.matmul, 4),
        "roofline_us": round(roofline, 3),
        "roofline_ratio": round(timing.median_us / roofline, 3),
    }


def lora(bench: Bench, layer: Layer, ranks: str, batch: Batch) -> Row:
    """Time multi-LoRA on one layer and batch, in bf16, against vLLM's on the same values."""
    device, row_adapter = bench.device, batch.row_adapter()
    by_adapter = ranks_of(ranks, batch.adapters, quick=bench.quick)
    shape = (by_adapter, layer.widths, layer.inner, row_adapter)
    work = Work.for_batch(*shape, torch.bfloat16.itemsize)
    count = lora_inputs.sets_needed(work.nbytes, device, quick=bench.quick)
    sets = [LoraInputs.draw(*shape, dtype=torch.bfloat16, device=device) for _ in range(count)]
    groups, peer = [lora_inputs.calls(sets)], _peer(bench, sets)
    if "calls" in peer:
        groups.append(peer.pop("calls"))
        if not (difference := _difference(sets[0], groups)) <= SAME:
            return {"passed": False, "reason": f"differs by {difference:.3g} from vLLM's result"}
    timings = time_calls(groups, device, rounds=3 if bench.quick else 20)
    rows = RankRows.stacked(sets[0].weights)
    result = against_ceilings(bench, timings[0], work)
    result["input_sets"] = count
    result["plan_us"] = round(host_us(lambda: Plan.build(row_adapter, rows), device), 1)
    if len(timings) > 1:
        peer |= _compared(timings[0].median_us, timings[1].median_us, result, peer, layer)
        peer["time_us"] = timings[1].to_json()
    return result | {"peer": peer}


def _difference(inputs: LoraInputs, groups: list[list[Call]]) -> float:
    """Return the relative difference of the two added outputs, as the norm over the norm of ours."""
    before = inputs.out.clone()
    added: list[torch.Tensor] = []
    for calls in groups:
        inputs.out.copy_(before)
        calls[0]()
        added.append(inputs.out.double() - before.double())
    return float((added[0] - added[1]).norm() / added[0].norm())


def _compared(mine: float, theirs: float, row: Row, peer: Row, layer: Layer) -> Row:
    """Return speed-ups of the kernels alone, and including each side's preparation per step.

    vLLM's preparation serves every packed layer of a step, ours every layer of one shape.
    """
    mine_prepared = mine + row["plan_us"] / layer.copies
    theirs_prepared = theirs + peer["metadata_us"] / (layer.copies * PACKED)
    return {
        "speedup": round(theirs / mine, 3),
        "speedup_with_preparation": round(theirs_prepared / mine_prepared, 3),
    }


def attention(bench: Bench, heads: Heads, query_lens: Sequence[int], context_lens: Sequence[int]) -> Row:
    """Time paged attention of one step, in bf16."""
    lens = (heads, query_lens, context_lens)
    work = attention_work(*lens, torch.bfloat16.itemsize)

    def draw() -> Call:
        return AttentionInputs.draw(*lens, dtype=torch.bfloat16, device=bench.device).attend

    return _timed(bench, work, draw)


def row_op(bench: Bench, op: str, model: Model, rows: int) -> Row:
    """Time a norm, a rotation or an activation over all rows of a step, in bf16."""
    first = OPS[op](model, rows, torch.bfloat16, bench.device)
    return _timed(bench, first.work, lambda: OPS[op](model, rows, torch.bfloat16, bench.device).run)


def _timed(bench: Bench, work: Work, draw: Callable[[], Call]) -> Row:
    count = lora_inputs.sets_needed(work.nbytes, bench.device, quick=bench.quick)
    calls = [draw() for _ in range(count)]
    [timing] = time_calls([calls], bench.device, rounds=3 if bench.quick else 20)
    return against_ceilings(bench, timing, work) | {"input_sets": count}


def _peer(bench: Bench, sets: list[LoraInputs]) -> dict[str, Any]:
    """Return vLLM's calls and its preparation per step, or why they are absent."""
    if bench.device.type != "cuda":
        return {"absent": "Triton kernels are not timed on a CPU"}
    try:
        ops = VllmOps.load()
    except PeerAbsent as error:
        return {"absent": str(error)}
    try:
        calls = ops.calls(sets)
        calls[0]()
        torch.cuda.synchronize()
    except Exception as error:  # any error of the peer's: our row continues without it
        return {"failed": f"{type(error).__name__}: {error}"}
    metadata_us = round(host_us(lambda: ops.prepare(sets[0]), bench.device), 1)
    return {"name": "vllm", "source": ops.source, "metadata_us": metadata_us, "calls": calls}
