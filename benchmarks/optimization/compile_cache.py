"""Start time that the compilation cache saves.

Each round starts a worker on an empty cache folder, which compiles the CPU's loops and packs the weights, and
then another on the filled folder. Everything else is in the page cache in both cases; `benchmarks.coldstart`
measures starts from a cold disk.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.coldstart import Start, once
from benchmarks.figure import Figure, compared

ROUNDS: Final = 5
GOAL: Final = 0.6
"""Relative to an empty cache: 40% saved, the lower end of the 40 to 60% published for cached compiled
artifacts.
"""


def start_saving(model: Path, *, rounds: int = ROUNDS) -> Iterator[Figure]:
    """Yield medians to the first token with a filled against an empty cache, and of the two cached phases."""
    empty, filled = list[Start](), list[Start]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="graftwork-compile-") as cache:
            variables = {"GRAFTWORK_WORKER_CACHE_DIR": cache, "GRAFTWORK_WORKER_ZYGOTE": ""}
            empty.append(once(variables, model))
            filled.append(once(variables, model))
    each = "; ".join(
        f"{first.seconds:.2f} and {second.seconds:.2f}" for first, second in zip(empty, filled, strict=True)
    )
    yield compared(
        "optimization",
        "start_with_filled_cache_s",
        _middle(start.seconds for start in filled),
        "s",
        baseline=_middle(start.seconds for start in empty),
        goal=GOAL,
        less_is_better=True,
        note=f"to the first token, medians of {rounds} rounds in turn; baseline: an empty cache;"
        f" rounds in s: {each}",
    )
    for phase in ("native_libraries", "weights"):
        yield compared(
            "optimization",
            f"start_with_filled_cache_{phase}_s",
            _middle(start.phases.get(phase, 0.0) for start in filled),
            "s",
            baseline=_middle(start.phases.get(phase, 0.0) for start in empty),
            less_is_better=True,
            note="that phase alone, as the worker tells it; baseline: an empty cache",
        )


def _middle(seconds: Iterator[float]) -> float:
    return statistics.median(seconds)
