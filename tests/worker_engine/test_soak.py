"""The soak's traffic against a small model for a few seconds: everything is answered, and nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.mixed_traffic import Watch
from benchmarks.soak import figures, model_with_tools, soak
from tests.worker_engine.tiny_adapter import adapter_ref


@pytest.mark.slow
def test_a_short_soak(tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path) -> None:
    refs = [adapter_ref(folder) for folder in tiny_adapters.values()]
    watch = asyncio.run(soak(model_with_tools(tiny_model, tmp_path / "model"), refs, tmp_path, seconds=15))
    assert (watch.stuck, watch.broken) == ([], [])
    assert not any(watch.left.values()), watch.left
    assert watch.statuses[200] > 10
    assert watch.statuses[400] > 0
    assert watch.hang_ups > 0


def test_what_is_left_or_grows_misses_its_goal() -> None:
    watch = Watch(left={"kv_pages_used": 1}, stuck=["x"], resident=[1.0] * 50 + [2.0] * 50)
    missed = {figure.metric for figure in figures(watch) if figure.met is False}
    assert missed == {"stuck", "left", "resident"}
