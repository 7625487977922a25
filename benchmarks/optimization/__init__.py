"""Gains and costs of optimizing the demo model on the CPU: size, held-out perplexity, speed, start time.

Perplexities and sizes do not depend on the machine's load; speeds are ratios of alternating runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure
from benchmarks.optimization.compile_cache import ROUNDS, start_saving
from benchmarks.optimization.quantization import quantization
from benchmarks.speculation import figures as speculation

MODEL: Final = Path(__file__).resolve().parents[2] / "var" / "models" / "smollm2-135m-instruct"


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield each part's figures.

    `quick` leaves out AWQ's group of 128, the many streams and speculation, and times one start per cache.
    """
    yield from quantization(MODEL, quick=quick)
    yield from start_saving(MODEL, rounds=1 if quick else ROUNDS)
    if not quick:
        yield from speculation()
