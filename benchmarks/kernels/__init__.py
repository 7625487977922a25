"""The kernels' CPU paths beside what users would otherwise run: one module per op, of the op's name.

`python -m benchmarks kernels` (`make bench-kernels`) runs them all. What needs a GPU is in gpu_report.py.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator

# As the worker does, for every module of this package; libgomp reads it when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from benchmarks.figure import Figure


def run() -> Iterator[Figure]:
    """Yields every op's figures, op by op."""
    for module in pkgutil.iter_modules(__path__):
        yield from importlib.import_module(f"{__name__}.{module.name}").run()
