"""Part `quantization`: quantized against unquantized weights, by layer, by model, and in the engine."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from benchmarks.gpu import quantized_decode, quantized_rows
from benchmarks.gpu.quantized_decode import WHOLE, Decode
from benchmarks.gpu.report import select
from benchmarks.gpu.shapes import MODELS, QUICK_MODELS
from benchmarks.gpu.task import Goal, Row, Task

ROWS: Final = (1, 16, 64, 4, 8, 2, 32, 2048)
STACK_ROWS: Final = (1, 8, 64)
DECODE_ROWS: Final = 64
GOAL: Final = 2.5
"""Required speed relative to bf16 at batch 1."""


def tasks(quick: bool, device: str) -> list[Task]:
    """Return the tasks: the engine's decode steps first, since the goal is about them; then all layers, then
    each.
    """
    return _decode(quick, device) + _all_layers(quick, device) + _layers(quick, device)


def _decode(quick: bool, device: str) -> list[Task]:
    forms = quantized_rows.forms(quick, device)[: 1 if quick else None]
    names = (WHOLE, *(form.name for form in forms))
    if quick:
        made = [Decode(name, 2, adapters, 24, 8) for name in names for adapters in (0, 2)]
    else:
        made = [Decode(name, *what) for name in names for what in ((1, 0), (8, 0), (1, 1), (8, 8), (64, 0))]
    return [
        Task(
            decode.key,
            {"op": "decode", "model": _model(quick), **asdict(decode)},
            partial(quantized_decode.run, decode=decode),
            environment={"GRAFTWORK_WORKER_TRITON": "1"},
            limit_s=150.0,
        )
        for decode in made
    ]


def _model(quick: bool) -> str:
    return (QUICK_MODELS if quick else MODELS)[0].name


def _all_layers(quick: bool, device: str) -> list[Task]:
    layers = (QUICK_MODELS if quick else MODELS)[0].layers
    made = []
    forms = quantized_rows.forms(quick, device)
    for rows, form in itertools.product((3,) if quick else STACK_ROWS, forms):
        inputs = _inputs(quick, "layers", form.name, rows)
        run = partial(quantized_rows.all_layers, form=form, layers=layers, rows=rows)
        made.append(Task(f"quantization.layers.{form.name}.{rows}", inputs, run, _environment(device)))
    return made


def _layers(quick: bool, device: str) -> list[Task]:
    layers = (QUICK_MODELS if quick else MODELS)[0].layers
    made = []
    counts, forms = (1, 17) if quick else ROWS, quantized_rows.forms(quick, device)
    for rows, form, layer in itertools.product(counts, forms, layers[2:] if quick else layers):
        inputs = _inputs(quick, "linear", form.name, rows) | {"layer": layer.name}
        run = partial(quantized_rows.one_layer, form=form, layer=layer, rows=rows)
        made.append(Task(f"quantization.{layer.name}.{form.name}.{rows}", inputs, run, _environment(device)))
    return made


def _inputs(quick: bool, op: str, form: str, rows: int) -> dict[str, str | int]:
    phase = "decode" if rows <= DECODE_ROWS else "prefill"
    return {"op": op, "model": _model(quick), "form": form, "rows": rows, "phase": phase}


def _environment(device: str) -> Mapping[str, str]:
    """On a CPU the kernels run in the interpreter, which tests results, not speed."""
    return {} if device == "cuda" else {"TRITON_INTERPRET": "1"}


def summary(rows: Sequence[Row]) -> list[str]:
    """Format decode steps against those in bf16, then products against PyTorch's, medians over layers."""
    lines = [f"{'row':44} {'us':>9} {'bf16 us':>9} {'x bf16':>6} {'x roof':>6}"]
    for row in select(rows, op="decode"):
        if "decode_step_us" not in row:
            continue
        whole = _whole_step(rows, row)
        beside = f"{whole:9.1f} {whole / row['decode_step_us']:6.2f}" if whole else f"{'-':>9} {'-':>6}"
        name = row["key"].removeprefix("quantization.")
        lines.append(f"{name:44} {row['decode_step_us']:9.1f} {beside} {row['step_roofline_ratio']:6.2f}")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "speedup" in row:
            inputs = row["inputs"]
            groups.setdefault(f"{inputs['op']} {inputs['form']} {inputs['rows']} rows", []).append(row)
    for name, group in groups.items():
        ours, theirs = (statistics.median(row[f]["median"] for row in group) for f in ("time_us", "whole_us"))
        times = statistics.median(row["speedup"] for row in group)
        ratio = statistics.median(row["roofline_ratio"] for row in group)
        lines.append(f"{name:44} {ours:9.1f} {theirs:9.1f} {times:6.2f} {ratio:6.2f}")
    return lines


def _whole_step(rows: Sequence[Row], row: Row) -> float | None:
    """Return the step time of the same load with unquantized weights."""
    inputs = row["inputs"]
    same = {name: inputs[name] for name in ("batch", "adapters", "prompt_tokens", "out_tokens")}
    found = [one["decode_step_us"] for one in select(rows, op="decode", form=WHOLE, **same)]
    return found[0] if found else None


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals of the formats with groups of 128, on a GPU: a decode step, and all linear layers."""
    measured = [row for row in rows if row.get("measured_on") == "cuda" and "error" not in row]
    return [goal for form in quantized_rows.FORMS[:2] for goal in _of_form(measured, form.name)]


def _of_form(rows: Sequence[Row], form: str) -> list[Goal]:
    steps = [
        whole / row["decode_step_us"]
        for row in select(rows, op="decode", form=form, batch=1, adapters=0)
        if "decode_step_us" in row and (whole := _whole_step(rows, row))
    ]
    layers = [row["speedup"] for row in select(rows, op="layers", form=form, rows=1) if "speedup" in row]
    return [
        _goal(f"{form}: a decode step at batch 1 >= {GOAL}x as fast as bf16", steps),
        _goal(f"{form}: all linear layers at 1 row >= {GOAL}x as fast as bf16", layers),
    ]


def _goal(name: str, found: Sequence[float]) -> Goal:
    if not found:
        return Goal(name, "not measured on a GPU", None)
    return Goal(name, f"{found[0]:.2f}", found[0] >= GOAL)
