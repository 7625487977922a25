"""Published figures beside those of the GPU report, and the benchmark of an adapter's load."""

from __future__ import annotations

import re
from typing import Any

import torch

from benchmarks.adapter_load import load_ms
from benchmarks.gpu.published import NOT_MEASURED, PUBLISHED, lines
from benchmarks.gpu.random_model import TINY, random_adapter, shape_config
from tests.conftest import ROOT
from worker_engine.adapters.adapter import pack_adapter


def row(adapters: int, step_us: float, **more: Any) -> dict[str, Any]:
    inputs = {"triton": True, "adapters": adapters, "concurrency": 16, "modules": "all", "loaded": False}
    return {
        "inputs": inputs | {"graphs": True, "overlap": True},
        "measured_on": "cuda",
        "otps": 96.6,
        "ttft_ms": {"p50": 81.2},
        "decode_steps": 9,
        "decode_step_us": step_us,
        **more,
    }


def test_every_published_figure_is_a_line_and_ours_are_of_a_gpu() -> None:
    rows = [row(0, 9000.0), row(8, 9450.0, adapter_load_ms=6.25)]
    head, *shown = lines(rows)
    assert "published by AWS" in head
    assert len(shown) == len(PUBLISHED) == 10
    assert max(map(len, shown)) <= 110
    text = "\n".join(shown)
    for figure in ("26 tokens/s, TTFT 1053 ms", "171 tokens/s, TTFT 124 ms", "56%", "2400 tokens/s, 1200"):
        assert figure in text
    for ours in ("97 tokens/s, TTFT 81 ms (Llama-3.1-8B)", "0.45 ms a step", "6.2 ms, rank 32"):
        assert ours in text
    on_cpu = [item | {"measured_on": "cpu"} for item in rows]
    for nothing in (on_cpu, []):
        assert all(line.endswith(NOT_MEASURED) for line in list(lines(nothing))[1:])


def test_the_document_has_the_same_figures() -> None:
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "gpu-report.md").read_text().replace(",", ""))
    for figure in PUBLISHED:
        assert figure.subject.replace(",", "") in text
        assert figure.value.replace(",", "") in text, figure.value


def test_an_adapters_load_fills_pages() -> None:
    model = shape_config(TINY)
    adapter = pack_adapter(random_adapter(0, model, 4, torch.device("cpu")), pinned=False)
    took = load_ms(adapter, model, loads=3)
    assert len(took) == 3
    assert min(took) > 0
