"""Part `correctness`: the engine against itself launch by launch, every op against float64; a row a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.gpu import (
    attention_checks,
    engine_checks,
    lora_checks,
    lora_embedding_checks,
    lora_form_checks,
    lora_stream_checks,
    quantized_checks,
    row_op_checks,
)
from benchmarks.gpu.task import Goal, Row, Task
from benchmarks.gpu.verdict import implementation


def tasks(quick: bool, device: str) -> list[Task]:
    """The engine first, which takes seconds and says most; then multi-LoRA in every form, then other ops."""
    made = engine_checks.tasks() + lora_checks.tasks(quick, device) + lora_embedding_checks.tasks(quick)
    if implementation(device) != "cpu path":
        made += lora_form_checks.tasks(quick, device)
    if device == "cuda":
        made += lora_stream_checks.tasks()
    made += attention_checks.tasks(quick, device) + quantized_checks.tasks(quick, device)
    return made + row_op_checks.tasks(quick, device)


def summary(rows: Sequence[Row]) -> list[str]:
    """Cases by op and form, and the largest error beside PyTorch's."""
    counts = Counter((row["inputs"]["op"], bool(row.get("passed"))) for row in rows)
    lines = []
    for op in sorted({row["inputs"]["op"] for row in rows}):
        ratios = [
            row["max_error"] / row["torch_max_error"]
            for row in rows
            if row["inputs"]["op"] == op and row.get("torch_max_error") and row["max_error"] is not None
        ]
        worst = f"; largest error {max(ratios):.2f} times PyTorch's" if ratios else ""
        lines.append(f"{op:12} {counts[op, True]} passed, {counts[op, False]} failed{worst}")
    return lines


def goals(rows: Sequence[Row]) -> list[Goal]:
    """One: that nothing failed."""
    measured = [row for row in rows if row.get("measured_on") == "cuda"]
    name = "every case right on a GPU"
    if not measured:
        return [Goal(name, "not run on a GPU", None)]
    passed = sum(bool(row.get("passed")) for row in measured)
    return [Goal(name, f"{passed} of {len(measured)}", passed == len(measured))]
