"""Norms, rotary embedding and gated activations against their specifications."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from benchmarks.gpu import row_ops
from benchmarks.gpu.shapes import MODELS, QUICK_MODELS, Model
from benchmarks.gpu.task import Bench, Row, Task
from benchmarks.gpu.verdict import DTYPES, failed, implementation, poisoned, verdict

ROWS: Final = (1, 6, 42, 123, 431, 2049)
ODD: Final = Model("odd", 2049, 431, 9, 3, 1, 64)
WIDE: Final = Model("wide heads", 2560, 10240, 8, 4, 1, 256)


def tasks(quick: bool, device: str) -> list[Task]:
    models = QUICK_MODELS if quick else (*MODELS, ODD, WIDE)
    rows, dtypes = (ROWS[1:3], ("float32",)) if quick else (ROWS, tuple(DTYPES))
    return [
        Task(
            f"{op}.{model.name}.{count}.{dtype}",
            {"op": op, "model": model.name, "rows": count, "dtype": dtype},
            partial(run, op=op, model=model, rows=count, dtype=dtype),
        )
        for dtype in dtypes
        for op in row_ops.OPS
        for model in models
        for count in rows
    ]


def run(bench: Bench, op: str, model: Model, rows: int, dtype: str) -> Row:
    """On poisoned memory; the worst of the tensors that the op made or changed."""
    call = row_ops.OPS[op](model, rows, DTYPES[dtype], bench.device)
    with poisoned():
        results = call.run()
    exact, plain = call.specified(torch.float64), call.specified(DTYPES[dtype])
    found = [verdict(*three) for three in zip(results, exact, plain, strict=True)]
    bad = [row for row in found if not row["passed"]]
    if any(result.isnan().any() for result in results):
        return failed("NaN: something was read before it was written, or never written")
    row = bad[0] if bad else max(found, key=lambda one: one["max_error"])
    return row | {"implementation": implementation(bench.device)}
