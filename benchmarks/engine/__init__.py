"""The worker compared with alternative engines on this CPU. See README.md."""

from __future__ import annotations

import os
from collections.abc import Iterator

# As the worker does, for everything in this process; libgomp reads it when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from benchmarks.engine.adapter_cost import adapter_cost
from benchmarks.engine.beside_peft import beside_peft
from benchmarks.engine.comparison import compare
from benchmarks.figure import Figure
from benchmarks.processes import DEMO_MODEL


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield the figures of the servers over HTTP and, unless `quick`, of the engine in this process."""
    yield from compare(DEMO_MODEL, quick=quick)
    if not quick:
        yield from adapter_cost(DEMO_MODEL)
        yield from beside_peft(DEMO_MODEL)
