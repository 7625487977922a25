"""The worker compared with alternative engines on this CPU. See README.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# As the worker does, for everything in this process; libgomp reads it when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from benchmarks.engine.adapter_cost import adapter_cost
from benchmarks.engine.beside_peft import beside_peft
from benchmarks.engine.comparison import compare
from benchmarks.figure import Figure

ROOT: Final = Path(__file__).resolve().parents[2]
MODEL: Final = Path(os.environ.get("GRAFTWORK_DEMO_MODEL", ROOT / "var" / "models" / "smollm2-135m-instruct"))


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield the figures of the servers over HTTP and, unless `quick`, of the engine in this process."""
    yield from compare(MODEL, quick=quick)
    if not quick:
        yield from adapter_cost(MODEL)
        yield from beside_peft(MODEL)
