"""Part `kernels`: the time of every op on real layer shapes beside the roofline and the peers, in one run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks.gpu import kernel_rows
from benchmarks.gpu.attention_inputs import Heads
from benchmarks.gpu.report import select
from benchmarks.gpu.row_ops import OPS
from benchmarks.gpu.shapes import MODELS, QUICK_MODELS, Batch, Layer, grid
from benchmarks.gpu.task import Goal, Row, Task

BANDWIDTH_GOAL: Final = 0.85
ROOFLINE_GOAL: Final = 1.15
ROOFLINE_FROM_US: Final = 20.0
SPEEDUP_GOAL: Final = 1.3
SLOWEST_GOAL: Final = 0.95
DISTINCT_FROM: Final = 64

HEADS: Final = (Heads("Llama-3.1-8B", 32, 8, 128), Heads("Llama-3.1-70B", 64, 8, 128))
"""Qwen3-32B's attention is that of Llama-3.1-70B."""
QUICK_HEADS: Final = (Heads("tiny", 4, 2, 16),)

Step = tuple[Sequence[int], Sequence[int]]
"""New tokens and context of each sequence."""
STEPS: Final[dict[str, Step]] = {
    "16 of 1900": ([1] * 16, [1900] * 16),
    "1 chunk of 2048": ([2048], [2048]),
    "64 of 100 to 4000": ([1] * 64, [100 + 62 * i for i in range(64)]),
    "1 of 8192": ([1], [8192]),
    "256 of 1024": ([1] * 256, [1024] * 256),
    "4 chunks of 512 at 4096": ([512] * 4, [4096] * 4),
    "16 + chunk of 1600": ([1] * 15 + [1600], [1900] * 15 + [1600]),
}
QUICK_STEPS: Final[dict[str, Step]] = {"2 of 40": ([1, 1], [40, 40]), "1 chunk of 20": ([20], [20])}
ROW_COUNTS: Final = (16, 1, 256, 4096)
DECODE_ROWS: Final = 256


def tasks(quick: bool, device: str) -> list[Task]:
    """Rows of every op in turn, each op's most telling ones first."""
    queues = [_lora(quick), _attention(quick), _row_ops(quick)]
    merged: list[Task] = []
    # Multi-LoRA has most of the grid: several of its rows for each of another op.
    while any(queues):
        for index, queue in enumerate(queues):
            count = 6 if index == 0 else 1
            merged += queue[:count]
            del queue[:count]
    return merged


def _lora(quick: bool) -> list[Task]:
    return [_lora_task(layer, ranks, batch) for layer, ranks, batch in grid(quick)]


def _attention(quick: bool) -> list[Task]:
    made: list[Task] = []
    steps = QUICK_STEPS if quick else STEPS
    for (name, (queries, contexts)), heads in itertools.product(
        steps.items(), QUICK_HEADS if quick else HEADS
    ):
        inputs = {
            "op": "attention",
            "model": heads.model,
            "phase": "decode" if max(queries) == 1 else "prefill",
            "batch": name,
            "rows": sum(queries),
            "context": sum(contexts),
            "dtype": "bfloat16",
        }
        run = partial(kernel_rows.attention, heads=heads, query_lens=queries, context_lens=contexts)
        made.append(Task(f"attention.{heads.model}.{name}", inputs, run))
    return made


def _row_ops(quick: bool) -> list[Task]:
    made: list[Task] = []
    counts, models = ((5,), QUICK_MODELS) if quick else (ROW_COUNTS, MODELS)
    for rows, model, op in itertools.product(counts, models, OPS):
        inputs = {
            "op": op,
            "model": model.name,
            "phase": "decode" if rows <= DECODE_ROWS else "prefill",
            "batch": rows,
            "rows": rows,
            "dtype": "bfloat16",
        }
        run = partial(kernel_rows.row_op, op=op, model=model, rows=rows)
        made.append(Task(f"{op}.{model.name}.{rows}", inputs, run))
    return made


def _lora_task(layer: Layer, ranks: str, batch: Batch) -> Task:
    inputs: dict[str, Any] = {
        "op": "lora",
        "model": layer.model,
        "layer": layer.name,
        "inner": layer.inner,
        "widths": list(layer.widths),
        "ranks": ranks,
        "phase": batch.phase,
        "rows": batch.rows,
        "adapters": batch.adapters,
        "batch": f"{batch.rows}x{batch.adapters}",
        "spread": batch.spread,
        "dtype": "bfloat16",
    }
    key = f"lora.{layer.model}.{layer.name}.r{ranks}.{batch.rows}x{batch.adapters}.{batch.spread}"
    return Task(key, inputs, partial(kernel_rows.lora, layer=layer, ranks=ranks, batch=batch))


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each op and batch: medians over its layers and ranks."""
    head = f"{'op, batch':34} {'rows':>4} {'us':>9} {'GB/s':>6} {'of copy':>7} {'x roof':>6} {'x vLLM':>6}"
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row:
            groups.setdefault(_batch_name(row), []).append(row)
    return [head, *(_line(name, group) for name, group in sorted(groups.items()))]


def _batch_name(row: Row) -> str:
    held = row["inputs"]
    return " ".join(str(held[name]) for name in ("op", "phase", "batch", "spread") if name in held)


def _line(name: str, group: Sequence[Row]) -> str:
    speedups = [row["peer"]["speedup"] for row in group if "speedup" in row.get("peer", {})]
    times = statistics.median(row["time_us"]["median"] for row in group)
    rate = statistics.median(row["bytes"] / row["time_us"]["median"] / 1e3 for row in group)
    fraction = statistics.median(row["bandwidth_fraction"] for row in group)
    ratio = statistics.median(row["roofline_ratio"] for row in group)
    peer = f"{statistics.geometric_mean(speedups):6.2f}" if speedups else "     -"
    return f"{name:34.34} {len(group):4} {times:9.1f} {rate:6.0f} {fraction:7.2f} {ratio:6.2f} {peer}"


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The issue's goals over the rows of a GPU; figures of a CPU are held against none of them."""
    measured = [row for row in rows if row.get("measured_on") == "cuda" and "error" not in row]
    return [_bandwidth(measured), _roofline(measured), *_peers(measured)]


def _bandwidth(rows: Sequence[Row]) -> Goal:
    decode = select(rows, op="lora", phase="decode", spread="distinct")
    found = [row["bandwidth_fraction"] for row in decode if row["inputs"]["adapters"] >= DISTINCT_FROM]
    name = f"decode at >= {DISTINCT_FROM} distinct adapters >= {BANDWIDTH_GOAL} of copy bandwidth"
    if not found:
        return Goal(name, "not measured on a GPU", None)
    reached = sum(value >= BANDWIDTH_GOAL for value in found)
    value = f"{min(found):.2f} to {max(found):.2f}, median {statistics.median(found):.2f}"
    return Goal(name, f"{value}; {reached} of {len(found)} rows", reached == len(found))


def _roofline(rows: Sequence[Row]) -> Goal:
    name = f"every row past {ROOFLINE_FROM_US:.0f} us within {ROOFLINE_GOAL}x of its roofline"
    found = [row["roofline_ratio"] for row in rows if row["time_us"]["median"] > ROOFLINE_FROM_US]
    if not found:
        return Goal(name, "not measured on a GPU", None)
    reached = sum(value <= ROOFLINE_GOAL for value in found)
    value = f"median {statistics.median(found):.2f}, worst {max(found):.2f}"
    return Goal(name, f"{value}; {reached} of {len(found)} rows", reached == len(found))


def _peers(rows: Sequence[Row]) -> list[Goal]:
    names = (f">= {SPEEDUP_GOAL}x vLLM in geometric mean", f"no row below {SLOWEST_GOAL}x vLLM")
    found = [row["peer"]["speedup"] for row in rows if "speedup" in row.get("peer", {})]
    if not found:
        return [Goal(name, "no peer was timed on a GPU", None) for name in names]
    mean, least = statistics.geometric_mean(found), min(found)
    below = sum(value < SLOWEST_GOAL for value in found)
    return [
        Goal(names[0], f"{mean:.2f} over {len(found)} rows", mean >= SPEEDUP_GOAL),
        Goal(names[1], f"least {least:.2f}; {below} rows below", below == 0),
    ]
