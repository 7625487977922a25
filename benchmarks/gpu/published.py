"""Figures that AWS has published, beside the report's own ones.

Models, machines and loads differ, so no ratio is computed. Where the report has no figure of its own that was
measured on a GPU, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gpu.report import select
from benchmarks.gpu.task import Row

NOT_MEASURED: Final = "not measured"
WIDTH: Final = 110
_SHAPE: Final[dict[str, Any]] = {
    "triton": True,
    "concurrency": 16,
    "modules": "all",
    "graphs": True,
    "overlap": True,
}


def _otps(rows: Sequence[Row]) -> str:
    """OTPS and TTFT with 8 adapters of rank 32 at concurrency 16."""
    found = select(rows, adapters=8, **_SHAPE)
    if not found:
        return NOT_MEASURED
    return f"{found[0]['otps']:.0f} tokens/s, TTFT {found[0]['ttft_ms']['p50']:.0f} ms (Llama-3.1-8B)"


def _resident(rows: Sequence[Row]) -> str:
    """Difference of decode steps with 8 resident adapters and with none, at concurrency 16."""
    mixed, base = select(rows, adapters=8, **_SHAPE), select(rows, adapters=0, loaded=False, **_SHAPE)
    if not (mixed and base and mixed[0]["decode_steps"] and base[0]["decode_steps"]):
        return NOT_MEASURED
    added = (mixed[0]["decode_step_us"] - base[0]["decode_step_us"]) / 1e3
    return f"{added:.2f} ms a step, 8 adapters (Llama-3.1-8B)"


def _host_to_device(rows: Sequence[Row]) -> str:
    found = [row["adapter_load_ms"] for row in select(rows, modules="all") if row.get("adapter_load_ms")]
    return f"{max(found):.1f} ms, rank 32 (Llama-3.1-8B)" if found else NOT_MEASURED


def _none(rows: Sequence[Row]) -> str:
    """The report measures nothing like it."""
    return NOT_MEASURED


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure.

    Attributes:
        ours: describes the report's own figure, from rows that were measured on a GPU.
    """

    subject: str
    value: str
    source: str
    ours: Callable[[Sequence[Row]], str]


_VLLM: Final = "AWS, February 2026: multi-LoRA of MoE models with vLLM"
_SLIDES: Final = "AWS re:Invent 2024, AIM313"
_CACHING: Final = "AWS, December 2024: container caching"
_TOOLKIT: Final = "AWS, July 2024: inference optimization toolkit, part 1"
PUBLISHED: Final = (
    Published("first implementation", "26 tokens/s, TTFT 1053 ms", _VLLM, _otps),
    Published("execution optimizations", "50 tokens/s, TTFT 150 ms", _VLLM, _otps),
    Published("the same, speculative decoding", "100 tokens/s, TTFT 150 ms", _VLLM, _none),
    Published("kernel optimizations, speculation", "144 tokens/s, TTFT 135 ms", _VLLM, _none),
    Published("tuned tiles, speculation", "171 tokens/s, TTFT 124 ms", _VLLM, _none),
    Published("resident adapter", "< 1 ms", _SLIDES, _resident),
    Published("adapter, host to GPU memory", "< 10 ms", _SLIDES, _host_to_device),
    Published("new copy, cached image, 70B", "56% less time", _CACHING, _none),
    Published("new instance, cached image, 70B", "30% less time", _CACHING, _none),
    Published("Llama 3 70B, ml.p5.48xlarge", "2400 tokens/s, 1200 before", _TOOLKIT, _none),
)
"""The first five: GPT-OSS 20B on an H200, 1600 tokens in, 600 out, 16 at a time, 8 adapters of rank 32."""


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of published figures; `rows` are those of part `engine`."""
    measured = [row for row in rows if row.get("measured_on") == "cuda" and "otps" in row]
    yield f"{'published by AWS':34} {'figure':27} ours, on a GPU"
    for figure in PUBLISHED:
        yield f"{figure.subject:34.34} {figure.value:27.27} {figure.ours(measured)}"[:WIDTH]
