"""The compilation cache's saving, measured with real starts of a tiny model: one compilation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import coldstart
from benchmarks.figure import Figure
from benchmarks.optimization import compile_cache as part
from kernels.native.build import instruction_set

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        instruction_set() is None or not (shutil.which("g++") or shutil.which("clang++")),
        reason="nothing is compiled on this machine",
    ),
]


def test_the_second_start_compiles_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[set[tuple[str, int]]] = []

    def watched(variables: dict[str, str], model: Path | None = None) -> coldstart.Start:
        start = coldstart.once(variables, model)
        cache = Path(variables["GRAFTWORK_WORKER_CACHE_DIR"])
        kept.append({(path.name, path.stat().st_mtime_ns) for path in cache.rglob("*") if path.is_file()})
        return start

    monkeypatch.setattr(part, "once", watched)
    told = part.start_saving(tiny_model, rounds=1)
    figures: dict[str, Figure] = {
        figure.metric.removeprefix("start_with_filled_cache_"): figure for figure in told
    }
    first, second = kept
    assert any(name.endswith(".so") for name, _ in first)
    assert second == first, "the start on a filled cache wrote there"
    whole, compiled = figures["s"], figures["native_libraries_s"]
    assert (whole.goal, whole.met) == (0.6, whole.ratio is not None and whole.ratio <= 0.6)
    assert whole.baseline is not None
    assert compiled.baseline is not None
    # Hundreds of times less where nothing else runs: what is compared is a compilation with a look-up.
    assert compiled.value < compiled.baseline / 10
    assert whole.baseline - whole.value > (compiled.baseline - compiled.value) / 2
    assert "of 1 rounds in turn" in whole.note
