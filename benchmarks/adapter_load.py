"""Time of copying an adapter from host memory into pages of the engine's pool, which GPU workers do.

AWS states less than 10 ms for loading an adapter from CPU to GPU memory. This benchmark runs on a CPU: it
fills pages of host memory by the code that fills a GPU's (`DeviceTier`), which measures the host's memory
instead of the bus. A CPU worker reads adapters where they were loaded, so that requests do not wait for such
a copy. What a resident adapter adds to a decode step is measured by `engine` (`adapter_step_ms_*`).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from benchmarks.figure import Figure
from benchmarks.gpu.random_model import ATTENTION, LLAMA_8B, random_adapter, shape_config
from worker_engine.adapters.adapter import Adapter, pack_adapter
from worker_engine.adapters.device_tier import DeviceTier
from worker_engine.checkpoint.model_config import LORA_MODULES, ModelConfig
from worker_engine.models import load_config

MODEL: Final = Path(__file__).resolve().parents[1] / "var" / "models" / "smollm2-135m-instruct"
LOADS: Final = 51
PAGE_TOKENS: Final = 16
BOUND_MS: Final = 10


def run() -> Iterator[Figure]:
    """Yield the milliseconds of a load for the demo adapters' shape, and for the GPU report's."""
    torch.set_num_threads(1)  # on a busy machine threads that wait for each other measure the scheduler
    yield _figure("demo_rank_8_attention", load_config(MODEL), 8, ATTENTION)
    yield _figure("llama_8b_rank_32_all_layers", shape_config(LLAMA_8B), 32, LORA_MODULES)


def load_ms(adapter: Adapter, model: ModelConfig, *, loads: int) -> list[float]:
    """Return the milliseconds of each load into a pool's pages; a first one is left out."""
    page = 2 * model.num_layers * model.num_kv_heads * model.head_dim * PAGE_TOKENS
    pages = DeviceTier(torch.empty((0, page), dtype=torch.bfloat16), model).pages_of(adapter)
    tier = DeviceTier(torch.zeros((pages + 1, page), dtype=torch.bfloat16), model)
    took: list[float] = []
    for _ in range(loads + 1):
        start = time.perf_counter()
        tier.load(adapter, range(1, pages + 1))  # on a CPU it returns when the copies are done
        took.append((time.perf_counter() - start) * 1e3)
        tier.drop(adapter.sha256)
    tier.close()
    return took[1:]


def _figure(name: str, model: ModelConfig, rank: int, modules: Sequence[str]) -> Figure:
    """Return the fastest load, which other processes disturb least; the note has the median."""
    adapter = pack_adapter(random_adapter(0, model, rank, torch.device("cpu"), modules), pinned=False)
    took = load_ms(adapter, model, loads=LOADS)
    note = (
        f"{adapter.nbytes / 2**20:.1f} MiB, {LOADS} loads by one thread, median "
        f"{statistics.median(took):.3f} ms, load average {os.getloadavg()[0]:.1f}; measured on a CPU, "
        f"AWS states less than {BOUND_MS} ms for GPUs"
    )
    return Figure("adapter_load", f"{name}_ms", round(min(took), 3), "ms", note=note)
